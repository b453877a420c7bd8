"""A home of its own for every test of the command line, and a way to call it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotstart import log
from hotstart.cli import main as cli

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """HOTSTART_HOME in a fresh directory, no other setting from outside, no configuration file in reach."""
    monkeypatch.setattr(log, "_said", set())  # what is said once is said once a process, and these share one
    for name in list(os.environ):
        if name.startswith(("HOTSTART_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "user").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOTSTART_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``call("stats", "--json")``: exit status, output, errors of a command line run in this process."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status = cli.main(list(arguments))
        out, err = capfd.readouterr()
        return status, out, err

    return run
