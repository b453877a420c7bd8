"""Protects what a program sees of ``hotstart run``: nothing. Exit status, signals, standard streams and terminal
are compared with the same command started directly, byte for byte."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from tests.launch.launching import HOTSTART, Place, on_a_terminal
else:
    from launching import HOTSTART, Place, on_a_terminal

PYTHON = sys.executable

#: What is run directly and under ``hotstart run``, and must not differ in anything.
COMMANDS: dict[str, list[str]] = {
    "succeeds": ["true"],
    "fails": ["false"],
    "status 7": ["sh", "-c", "exit 7"],
    "status 255": ["sh", "-c", "exit 255"],
    "status of a shell's child": ["sh", "-c", "sh -c 'exit 130'; exit $?"],
    "both streams": ["sh", "-c", "echo out; echo err >&2; echo out again"],
    "binary output": ["printf", r"\000\377\n\r\t\033[0m"],
    "reads its input": ["cat"],
    "reads a line": ["sh", "-c", 'read line; echo "<$line>"'],
    "closes its descriptors": ["sh", "-c", "exec >&- 2>&- <&-; exit 5"],
    "open descriptors": ["ls", "/proc/self/fd"],
    "arguments as they are": ["printf", "%s|", "", " ", "*", "$HOME", "a b", "\udcff", "--", "-x", "é"],
    "signals ignored and caught": ["grep", "-E", "^Sig(Ign|Cgt|Blk)", "/proc/self/status"],
    "locale": ["sh", "-c", 'echo "${LC_CTYPE-unset} ${LC_ALL-unset} ${LANG-unset}"'],
    "broken pipe": ["sh", "-c", "yes | head -1; exit 0"],
    "stops by SIGTERM": ["sh", "-c", "kill -TERM $$"],
    "stops by SIGKILL": ["sh", "-c", "kill -KILL $$"],
    "stops by SIGINT": ["sh", "-c", "kill -INT $$"],
    "stops by SIGQUIT": ["sh", "-c", "ulimit -c 0; kill -QUIT $$"],
    "stops by SIGHUP": ["sh", "-c", "kill -HUP $$"],
    "stops by SIGPIPE": ["sh", "-c", "kill -PIPE $$"],
    "stops by SIGUSR1": ["sh", "-c", "kill -USR1 $$"],
    "crashes": ["sh", "-c", "ulimit -c 0; kill -SEGV $$"],
    "aborts": ["sh", "-c", "ulimit -c 0; kill -ABRT $$"],
    "in the foreground": [PYTHON, "-c", "import os; print(os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp())"],
    "leaves a daemon": ["sh", "-c", "(sleep 0.3; :) >/dev/null 2>&1 </dev/null & echo started"],
    "working directory": ["pwd"],
    "umask": ["sh", "-c", "umask"],
    "nice": ["nice"],
}


def environments(place: Place) -> dict[str, str]:
    # Without LANG Python coerces the locale, and the child would inherit that.
    return {name: value for name, value in place.environ.items() if name != "LANG"}


def ended(command: list[str], place: Place, **extra: object) -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        command,
        env=environments(place),
        cwd=place.work,
        input=b"first line\nsecond line without end",
        capture_output=True,
        check=False,
        **extra,  # type: ignore[call-overload]
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("what", COMMANDS)
def test_piped_it_is_the_same_with_and_without(what: str, place: Place) -> None:
    command = COMMANDS[what]
    assert ended([*HOTSTART, "run", "--", *command], place) == ended(command, place)


@pytest.mark.parametrize("what", COMMANDS)
def test_on_a_terminal_it_is_the_same_with_and_without(what: str, place: Place) -> None:
    command = COMMANDS[what]
    path = shutil.which(command[0])
    assert path is not None
    # Reading from a terminal ends with its end-of-file character.
    typed = b""
    if what in ("reads its input", "reads a line"):
        command = ["sh", "-c", 'echo ready; exec "$@"', "sh", *command]
        path = shutil.which("sh")
        typed = b"a line\n\x04"
    assert path is not None
    directly = on_a_terminal([path, *command[1:]], environments(place), place.work, typed)
    under = on_a_terminal([*HOTSTART, "run", "--", *command], environments(place), place.work, typed)
    assert under == directly


TYPING = {
    "interrupts": b"\x03",
    "quits": b"\x1c",
    "ends the input": b"\x04",
}


@pytest.mark.parametrize("what", TYPING)
@pytest.mark.parametrize("handles", ["default", "caught"])
def test_a_key_reaches_the_program_once(what: str, handles: str, place: Place) -> None:
    """Ctrl-C and Ctrl-\\ go to the whole group: passed on as well, they would arrive twice."""
    # Taken one by one: a handler in Python would run once for two that come close together.
    program = (
        "import signal, sys\n"
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "numbers = {signal.SIGINT, signal.SIGQUIT}\n"
        f"caught = {handles == 'caught'}\n"
        "if caught: signal.pthread_sigmask(signal.SIG_BLOCK, numbers)\n"
        "print('ready', flush=True)\n"
        "if sys.argv[1] == 'ends the input': sys.exit(len(sys.stdin.read()))\n"
        "seen = []\n"
        "while caught and (found := signal.sigtimedwait(numbers, 0.5 if seen else 20)): seen.append(found.si_signo)\n"
        "if not caught: signal.pause()\n"
        "print(seen)\n"
    )
    command = [PYTHON, "-c", program, what]
    directly = on_a_terminal(command, environments(place), place.work, TYPING[what])
    under = on_a_terminal([*HOTSTART, "run", *command], environments(place), place.work, TYPING[what])
    assert under == directly


def started(place: Place, *command: str, **extra: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*HOTSTART, "run", *command],
        env=place.environ,
        cwd=place.work,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **extra,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM])
def test_a_signal_sent_to_us_reaches_the_program(number: signal.Signals, place: Place) -> None:
    program = f"trap 'echo got it; exit 9' {number.name[3:]}; echo ready; while :; do sleep 0.1; done"
    process = started(place, "sh", "-c", program)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (9, "got it\n", "")


def test_an_ignored_signal_stays_ignored(place: Place) -> None:
    """``nohup hotstart run …``: the hang-up must not be passed on by us."""
    process = started(
        place,
        *("sh", "-c", "echo ready; sleep 1; echo survived"),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=60)[0] == "survived\n"
    assert process.returncode == 0


def test_a_stopped_program_is_a_stopped_job(place: Place) -> None:
    """What the shell sees after Ctrl-Z; and ``fg`` continues it."""
    process = started(place, "sh", "-c", "echo ready; kill -STOP $$; echo went on; exit 4", start_new_session=True)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.killpg(process.pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (4, "ready\nwent on\n")


def test_a_daemon_is_not_waited_for(place: Place) -> None:
    begun = time.monotonic()
    done = place.run("sh", "-c", "(sleep 30) >/dev/null 2>&1 </dev/null & echo $!")
    os.kill(int(done.stdout), signal.SIGKILL)
    assert done.returncode == 0
    assert time.monotonic() - begun < 25


def test_closed_standard_streams_are_closed_for_the_program(place: Place) -> None:
    script = "for n in 0 1 2; do [ -e /proc/self/fd/$n ] || echo $n >> closed; done; exit 3"
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *HOTSTART, "run", "sh", "-c", script],
        env=place.environ,
        cwd=place.work,
        check=False,
    )
    assert done.returncode == 3
    assert (place.work / "closed").read_text() == "0\n1\n2\n"


CANNOT = {
    "not found": (["surely-not-a-command"], 127, "surely-not-a-command: command not found"),
    "no such path": (["./absent"], 127, "./absent: no such file or directory"),
    "not executable": (["./plain"], 126, "./plain: permission denied"),
    "not executable on PATH": (["plain"], 126, "plain: permission denied"),
    "a directory": (["./folder"], 126, "./folder: is a directory"),
    "no interpreter": (["./lost"], 127, "./lost: no such file or directory"),
    "below a file": (["./plain/x"], 126, "./plain/x: not a directory"),
}


@pytest.mark.parametrize("what", CANNOT)
@pytest.mark.parametrize("disabled", ["", "1"])
def test_what_cannot_be_started_ends_as_from_env_or_a_shell(what: str, disabled: str, place: Place) -> None:
    (place.work / "plain").write_text("echo never\n")
    (place.work / "folder").mkdir()
    (place.work / "lost").write_text("#!/no/such/interpreter\n")
    (place.work / "lost").chmod(0o755)
    command, status, message = CANNOT[what]
    env = {"PATH": f"{place.work}:{place.environ['PATH']}", "HOTSTART_DISABLE": disabled}
    done = place.run(*command, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", f"hotstart: {message}\n")
    by_env = subprocess.run(
        ["env", *command], env=place.environ | env, cwd=place.work, capture_output=True, check=False
    )
    assert by_env.returncode == status


def test_a_script_without_an_interpreter_line_is_given_to_sh(place: Place) -> None:
    script = place.work / "script"
    script.write_text('echo "$0 $1"\n')
    script.chmod(0o755)
    for disabled in ("", "1"):
        done = place.run("./script", "argument", env={"HOTSTART_DISABLE": disabled})
        assert (done.returncode, done.stdout) == (0, "./script argument\n")


def test_no_command_is_misuse(place: Place) -> None:
    for arguments in ([], ["--"], [""]):
        done = place.run(*arguments)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1


def unwritable(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a file where a directory should be")


def test_without_a_place_for_the_store_the_program_runs_as_if_we_were_not_there(place: Place) -> None:
    unwritable(place.home)
    done = place.run("sh", "-c", "echo ${TRITON_CACHE_DIR-unset}; exit 6")
    assert (done.returncode, done.stdout) == (6, "unset\n")
    assert done.stderr.startswith("hotstart: ")
    assert done.stderr.count("\n") == 1


def test_turned_off_nothing_is_set_and_nothing_made(place: Place) -> None:
    done = place.run("sh", "-c", "echo ${TRITON_CACHE_DIR-unset}; exit 6", env={"HOTSTART_DISABLE": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (6, "unset\n", "")
    assert not place.home.exists()
