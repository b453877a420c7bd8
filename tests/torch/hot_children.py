"""Processes that the tests of ``hotstart.torch`` start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def child(home: Path, code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with ``hot_models`` at hand and its own HOTSTART_HOME."""
    env = {**os.environ, "HOTSTART_HOME": str(home), "PYTHONPATH": str(HERE), **environment}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, timeout=600, check=False
    )
