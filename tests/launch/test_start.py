"""Keeps the way to the child process short: the modules that ``hotstart run`` imports when nothing has happened."""

from __future__ import annotations

import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.launch.launching import Place
else:
    from launching import Place

#: Each of these costs more than all that a run has to do. ``resource`` comes with ``os.wait4``.
HEAVY = {
    *("argparse", "subprocess", "sqlite3", "json", "re", "typing", "dataclasses", "enum", "signal", "functools"),
    *("logging", "pathlib", "tempfile", "shutil", "threading", "contextlib", "collections", "inspect", "random"),
    *("blake3", "xxhash", "backports.zstd", "compression.zstd", "tomllib", "importlib.metadata", "platform"),
}

#: What of hotstart is needed to start a command and to see that nothing has changed.
OURS = {
    *("hotstart", "hotstart.errors", "hotstart.log", "hotstart.config"),
    *("hotstart.cli", "hotstart.cli.main", "hotstart.cli.run"),
    *("hotstart.compilers", "hotstart.compilers.contract", "hotstart.compilers.frameworks"),
    *("hotstart.compilers.table_kernels", "hotstart.compilers.table_torch", "hotstart.compilers.table_vendors"),
    *("hotstart.launch", "hotstart.launch.child", "hotstart.launch.environment", "hotstart.launch.live"),
    *("hotstart.launch.run", "hotstart.launch.session", "hotstart.launch.state"),
}

PROGRAM = """
import sys
before = set(sys.modules)
from hotstart.cli.main import main
status = main(["run", "true"])
print(*sorted(set(sys.modules) - before))
sys.exit(status)
"""


def imported(place: Place) -> set[str]:
    # Without the site's .pth files, which import things that would hide ours.
    roots = [path for path in sys.path if path]
    program = f"import sys; sys.path += {roots!r}\n{PROGRAM}"
    command = [sys.executable, "-I", "-S", "-c", program]
    return set(subprocess.run(command, env=place.environ, capture_output=True, text=True, check=True).stdout.split())


def test_a_run_in_which_nothing_happens_imports_next_to_nothing(place: Place) -> None:
    place.sh('mkdir -p "$TRITON_CACHE_DIR/A"; echo x > "$TRITON_CACHE_DIR/A/k.cubin"')
    found = imported(place)
    assert found & HEAVY == set()
    assert {name for name in found if name.partition(".")[0] == "hotstart"} == OURS


def test_a_first_run_imports_more(place: Place) -> None:
    """So that the test above is known to look at the right process."""
    assert {"hotstart.launch.restore", "json"} <= imported(place)
