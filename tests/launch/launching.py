"""A home of its own for ``hotstart run``, and the ways to call it."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: As the installed script does it, whether or not it is on PATH here.
HOTSTART = [sys.executable, "-c", "import sys; from hotstart.cli.main import main; sys.exit(main())"]


class Place:
    """Directories of one user, and ``hotstart`` called in them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = path / "home"
        self.work = path / "work"
        self.work.mkdir()
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(path / "user"),
            "TMPDIR": str(path),
            "HOTSTART_HOME": str(self.home),
            "LANG": "C.UTF-8",
        }

    @property
    def root(self) -> Path:
        return self.home / "frameworks"

    def run(self, *command: str, **extra: Any) -> subprocess.CompletedProcess[str]:
        """``hotstart run COMMAND``; what it printed is in the result."""
        return self.hotstart("run", *command, **extra)

    def hotstart(self, *arguments: str, **extra: Any) -> subprocess.CompletedProcess[str]:
        env = self.environ | extra.pop("env", {})
        return subprocess.run(
            [*HOTSTART, *arguments], env=env, cwd=self.work, capture_output=True, text=True, check=False, **extra
        )

    def sh(self, script: str, **extra: Any) -> subprocess.CompletedProcess[str]:
        """``hotstart run sh -c SCRIPT``, which must end well and say nothing of its own."""
        done = self.run("sh", "-c", script, **extra)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done

    def wipe(self) -> None:
        """What a reboot, a fresh container or a cleaned temporary directory does."""
        shutil.rmtree(self.root)

    def record(self) -> dict[str, Any]:
        """The record of the last run."""
        from hotstart.launch import records

        found = records.last(str(self.home))
        assert found
        return found[0]

    def inventory(self) -> dict[str, Any]:
        return dict(json.loads((self.home / "launch" / "inventory").read_text()))

    def files(self) -> dict[str, bytes]:
        """Every file of the redirected directories."""
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }


def on_a_terminal(command: list[str], env: dict[str, str], cwd: Path, typed: bytes = b"") -> tuple[int, bytes]:
    """Run ``command`` on a terminal of its own, as the leader of its session; the wait status and all it printed."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.chdir(cwd)
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            os.execve(command[0], command, env)
        finally:
            os._exit(99)
    printed = b""
    if typed:
        # Not before the command says that it listens: what is typed earlier may go to nobody.
        while b"ready" not in printed:
            printed += os.read(terminal, 1024)
        os.write(terminal, typed)
    while True:
        try:
            piece = os.read(terminal, 1 << 16)
        except OSError:
            break  # Linux says so when the last process has closed its end
        if not piece:
            break
        printed += piece
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return status, printed
