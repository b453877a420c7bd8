"""Collecting in store and redirected directories together: what is stored can leave the disk and come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotstart.config import load
from hotstart.launch.live import begin, end
from hotstart.launch.tidy import tidy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Stands for a framework: reads each kernel, and compiles those that are missing. One unit a kernel, 64 KiB.
PROGRAM = """
import os, pathlib, random, sys
root = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
compiled = 0
for name in sys.argv[1:]:
    file = root / name / "kernel.cubin"
    if not file.exists():
        file.parent.mkdir(parents=True)
        file.write_bytes(random.Random(name).randbytes(65536))
        compiled += 1
    file.read_bytes()
print(compiled)
"""


class Home:
    def __init__(self, root: Path) -> None:
        self.root = root
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOTSTART_")}
        self.environ = {**kept, "HOTSTART_HOME": str(root)}

    def call(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "hotstart", *arguments]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, name: str, *kernels: str) -> int:
        """How many kernels a run had to compile."""
        program = [sys.executable, "-c", PROGRAM, *kernels]
        return int(self.call("run", "-q", "--name", name, "--only", "triton", "--", *program))

    def gc(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.call("gc", "--json", *arguments))
        return found

    def on_disk(self) -> set[str]:
        return {path.parent.name for path in (self.root / "frameworks" / "triton").glob("*/kernel.cubin")}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    assert made.run("a", "A1", "A2") == 2
    assert made.run("b", "B1", "B2") == 2
    return made


def test_files_go_first_and_come_back(home: Home) -> None:
    done = home.gc("--max-size", "300KiB")
    assert done["removed"]["entries"] == 0
    assert done["removed"]["directories"] == 4 * 65536
    assert done["left"]["bytes"] + done["left"]["directories"] <= 300 << 10
    assert home.on_disk() == set()
    assert home.run("a", "A1", "A2") == 0
    assert home.on_disk() == {"A1", "A2"}


def test_then_entries_go(home: Home) -> None:
    done = home.gc("--max-size", "150KiB")
    assert done["removed"]["entries"] == 2
    assert done["left"] == {"entries": 2, "bytes": done["left"]["bytes"], "directories": 0}
    assert done["left"]["bytes"] <= 150 << 10


def test_a_trial_removes_nothing(home: Home) -> None:
    done = home.gc("--max-size", "150KiB", "--dry-run")
    assert (done["dry_run"], done["removed"]["directories"], done["removed"]["entries"]) == (True, 4 * 65536, 2)
    assert home.on_disk() == {"A1", "A2", "B1", "B2"}
    assert home.run("a", "A1", "A2", "B1", "B2") == 0


def test_what_is_read_in_its_directory_is_not_old(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A is used once more; its entries, which nobody had to restore, are as old as those of B."""
    time.sleep(0.1)  # the clock of the file system ticks
    since = time.time()
    time.sleep(0.1)
    assert home.run("a", "A1", "A2") == 0
    monkeypatch.setenv("HOTSTART_HOME", str(home.root))
    root = f"{home.root}/frameworks"
    # Called and not started: a process would need longer to come up than lies between these times.
    done = tidy(load(), str(home.root), root, max_size=None, older_than=time.time() - since)
    assert (done.entries, done.files) == (2, 2 * 65536)
    assert home.on_disk() == {"A1", "A2"}
    assert home.run("a", "A1", "A2") == 0
    assert home.run("b", "B1", "B2") == 2


def test_what_a_live_run_uses_stays(home: Home) -> None:
    live = begin(str(home.root), "somebody")
    try:
        home.run("a", "A1", "A2")
        assert home.gc("--max-size", "1KiB")["removed"]["directories"] == 2 * 65536
        assert home.on_disk() == {"A1", "A2"}
    finally:
        end(str(home.root), "somebody", live)


def test_with_nothing_said_nothing_that_is_wanted_goes(home: Home) -> None:
    done = home.gc()
    assert (done["removed"]["entries"], done["removed"]["directories"]) == (0, 0)
    assert home.run("a", "A1", "A2", "B1", "B2") == 0
