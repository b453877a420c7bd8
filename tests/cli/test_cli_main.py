"""The face of the command line: what a wrong command line says, and that nothing ends in a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hotstart
from hotstart.cli import main as cli
from hotstart.cli.run import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

Call = "Callable[..., tuple[int, str, str]]"


def one_line(text: str) -> str:
    """The only line of ``text``."""
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


def test_no_command_shows_the_usage_and_fails(call: Callable[..., tuple[int, str, str]]) -> None:
    status, out, _ = call()
    assert status == 2
    assert "usage: hotstart COMMAND" in out


@pytest.mark.parametrize("flag", ["--help", "-h", "help"])
def test_help_lists_every_command(call: Callable[..., tuple[int, str, str]], flag: str) -> None:
    status, out, _ = call(flag)
    assert status == 0
    listed = {line.split()[0] for line in out.splitlines() if line.startswith("  ")}
    assert set(cli.COMMANDS) <= listed


def test_version(call: Callable[..., tuple[int, str, str]]) -> None:
    assert call("--version") == (0, f"hotstart {hotstart.__version__}\n", "")


def test_an_unknown_command_is_one_line_and_two(call: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = call("rnu")
    assert (status, out) == (2, "")
    assert "unknown command 'rnu'" in one_line(err)
    assert "did you mean 'run'" in err


def test_an_unknown_option_is_one_line_and_two(call: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = call("--frobnicate")
    assert (status, out) == (2, "")
    assert "unknown option '--frobnicate'" in one_line(err)


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_helps_with_an_example(call: Callable[..., tuple[int, str, str]], command: str) -> None:
    status, out, err = call(command, "--help")
    assert (status, err) == (0, "")
    assert "example" in out
    assert f"hotstart {command}" in out
    assert "--json" in out


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_refuses_what_it_does_not_know(call: Callable[..., tuple[int, str, str]], command: str) -> None:
    status, out, err = call(command, "--frobnicate")
    assert (status, out) == (2, "")
    assert "--frobnicate" in one_line(err)


@pytest.mark.parametrize("name", ["a/b", "/", "..", "", " x", "a\nb", "a\\b", "x" * 129])
def test_a_name_that_could_not_be_a_directory_is_refused(call: Callable[..., tuple[int, str, str]], name: str) -> None:
    status, _, err = call("run", "--name", name, "true")
    assert status == 2
    assert one_line(err).startswith("hotstart: a name")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no command was given"),
        (["--"], "no command was given"),
        ([""], "no command was given"),
        (["--name"], "--name needs a value"),
        (["--grace", "soon", "true"], "--grace is a number of seconds"),
        (["--grace=-1", "true"], "--grace is a number of seconds"),
        (["--grace=nan", "true"], "--grace is a number of seconds"),
        (["--only", "trition", "true"], "no framework is called 'trition'"),
        (["--only", ",", "true"], "--only names frameworks"),
        (["-x", "true"], "unknown option '-x'"),
        (["--quiet=1", "true"], "unknown option '--quiet=1'"),
        (["--prefetch"], "--prefetch needs a value"),
        (["--prefetch", "a/b", "true"], "a name has no slash"),
    ],
)
def test_a_run_that_cannot_be_meant_says_so(
    call: Callable[..., tuple[int, str, str]], arguments: list[str], said: str
) -> None:
    status, out, err = call("run", *arguments)
    assert (status, out) == (2, "")
    assert said in one_line(err)


def test_options_of_run_end_where_the_command_begins() -> None:
    options, command = parse(
        ["--name", "a b", "--only=torch, triton", "-q", "--grace", "2.5", "python", "-q", "--name"]
    )
    assert command == ["python", "-q", "--name"]
    assert options == {
        "name": "a b", "only": ["torch", "triton"], "quiet": True, "grace": 2.5,
        "force": False, "dry_run": False, "json": False, "prefetch": [],
    }  # fmt: skip


def test_a_command_that_looks_like_an_option_goes_after_two_dashes() -> None:
    options, command = parse(["--force", "--", "--weird", "--"])
    assert command == ["--weird", "--"]
    assert options is not None
    assert options["force"] is True


def test_a_further_command_is_one_line(
    call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "later.py").write_text("def main(arguments):\n    print(arguments)\n    return 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(cli.COMMANDS, "later", ("later", "what comes later"))
    assert call("later", "a", "--b") == (7, "['a', '--b']\n", "")


def test_a_reader_that_goes_away_is_no_error(home: Path) -> None:
    """``hotstart … | head -0``: no traceback, no complaint from the interpreter as it ends."""
    program = [sys.executable, "-m", "hotstart", "--help"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_parsing_a_run_imports_nothing_heavy() -> None:
    """The way to the child: neither argparse nor anything else that the commands for people need."""
    program = (
        "import sys; before = set(sys.modules)\n"
        "from hotstart.cli.main import main\nfrom hotstart.cli.run import parse\n"
        "parse(['--name', 'x', '--only', 'torch', '--', 'true'])\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    heavy = {
        *("argparse", "json", "typing", "dataclasses", "logging", "pathlib", "tempfile", "inspect", "sqlite3", "re"),
        *("subprocess", "shutil", "difflib", "importlib.metadata", "tomllib", "asyncio", "hotstart.cache"),
    }
    assert set(done.stdout.split()) & heavy == set()
