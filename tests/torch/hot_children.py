"""Processes that the tests of ``hotstart.torch`` start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.torch.hot_programs import PLAIN, PROGRAM
else:
    from hot_programs import PLAIN, PROGRAM

HERE = Path(__file__).parent
RANKS = 8


def child(home: Path, code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with ``hot_models`` at hand and its own HOTSTART_HOME."""
    env = {**os.environ, "HOTSTART_HOME": str(home), "PYTHONPATH": str(HERE), **environment}
    # One for all: what Inductor finds out about the compiler takes seconds.
    env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(home.parent / "inductor"))
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, timeout=600, check=False
    )


#: One process imports torch and Dynamo, then forks the ranks: eight imports would take longer than the build.
TOGETHER = """
import os, sys, torch, torch._dynamo
import hotstart.torch
sys.path.insert(0, os.environ["HOTSTART_HOME"])
import generated
torch.set_num_threads(1)

def rank():
    model = generated.model()
    compiled = hotstart.torch.compile(model)
    # Dynamo without Inductor: how torch.compile serves the misses is not what this is about.
    compiled._engine._plain = torch.compile(model, backend="eager")
    x = torch.ones(4, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))

pids = []
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        try:
            rank()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    pids.append(pid)
sys.exit(sum(os.waitpid(pid, 0)[1] for pid in pids))
"""


def start_ranks(home: Path, count: int, before: str = "") -> None:
    """``count`` ranks with the same model, together, on this home; ``before`` is code they begin with."""
    (home / "generated.py").write_text(PROGRAM.format(**PLAIN), encoding="utf-8")
    run = child(home, before + TOGETHER, str(count))
    assert run.returncode == 0, run.stderr


def records(home: Path) -> list[dict[str, Any]]:
    path = home / "torch" / "record.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_the_helper(home: Path) -> dict[str, Any]:
    """The last word of the helper that was started."""
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        ended = [line for line in records(home) if line["event"] in ("published", "failed")]
        if ended:
            return ended[-1]
        time.sleep(1)
    raise AssertionError(f"no helper has ended: {records(home)}")
