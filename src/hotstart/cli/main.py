"""``hotstart COMMAND …``: finds the command, calls it, and turns what it raises into one line.

Every command is a module with ``main(arguments: list[str]) -> int``, or another function of
one, after a colon. They are named in ``COMMANDS`` and imported when asked for: ``hotstart run``
is on the way of every start of a user's program and must not pay for the others, nor for
``argparse``.

Exit status: 0, what the command returns, 1 for an error that is not the caller's, 2 for
an unknown command or option or for arguments that make no sense, 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys

from ..errors import HotstartError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: A command, the module it is in (and its function, unless that is ``main``), and what it does in a few words.
#: A further command is one line.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("hotstart.cli.run", "run a program so that its frameworks start hot"),
    "warm": ("hotstart.cli.warm", "the same, and build the packages of its models before they are needed"),
    "env": ("hotstart.cli.env", 'print the same environment for a shell: eval "$(hotstart env)"'),
    "stats": ("hotstart.cli.stats", "hits, misses, entries, bytes and seconds saved, by framework"),
    "why": ("hotstart.cli.why", "why the last run compiled what it compiled"),
    "doctor": ("hotstart.cli.doctor", "check this environment, with a remedy for what is wrong"),
    "ls": ("hotstart.cli.ls", "list the entries of the store"),
    "gc": ("hotstart.cli.gc", "remove what was not used lately, or down to a size"),
    "verify": ("hotstart.cli.verify", "read and check everything in the store"),
    "clear": ("hotstart.cli.clear", "remove every entry"),
    "push": ("hotstart.cli.sharing:push", "publish what is in the store as a named workload, signed"),
    "pull": ("hotstart.cli.sharing:pull", "bring what a named workload needs into the store"),
    "trust": ("hotstart.cli.sharing:trust", "whose entries are run here: keygen, add, list, remove"),
    "remote": ("hotstart.cli.sharing:remote", "gc: remove from the remote what is old, or down to a size"),
    "config": ("hotstart.cli.config", "every setting, and where its value came from"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (the process's own by default) and return its exit status. Raises nothing on purpose."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # a reader that went away is noticed here and not in the interpreter's last breath
        return status
    except BrokenPipeError:
        _close_stdout()
        return 141  # what a shell shows of a program that SIGPIPE ended
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # argparse, after --help
        return end.code if isinstance(end.code, int) else 0
    except HotstartError as error:
        _complain(str(error))
        return 2 if isinstance(error, UsageError) else 1
    except OSError as error:
        _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 1


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    command, rest = arguments[0], arguments[1:]
    if command in ("-V", "--version"):
        from .. import __version__

        print(f"hotstart {__version__}")
        return 0
    found = COMMANDS.get(command)
    if found is None:
        what = "option" if command.startswith("-") else "command"
        raise UsageError(f"unknown {what} {command!r}{_meant(command)}; hotstart --help lists the commands")
    # __import__ rather than importlib, which costs a millisecond.
    where, _, function = found[0].partition(":")
    module = __import__(where, fromlist=["main"])
    return int(getattr(module, function or "main")(rest))


def usage() -> str:
    """The text of ``hotstart --help``."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        (
            "usage: hotstart COMMAND [OPTION]…",
            "",
            "One cache for every GPU compiler: compile once, start hot everywhere.",
            "",
            *lines,
            "",
            "examples:",
            "  hotstart run python train.py",
            "  hotstart why",
            "",
            "hotstart COMMAND --help says more about each.",
        )
    )


def _meant(command: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(command, COMMANDS, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _complain(message: str) -> None:
    """One line on stderr, whatever the message holds; nothing where there is no stderr."""
    line = " ".join(message.split())
    try:
        print(f"hotstart: {line}", file=sys.stderr)
    except (OSError, ValueError, AttributeError):
        pass  # stderr is closed: there is nobody to tell


def _close_stdout() -> None:
    """Give the interpreter somewhere to flush to, or it reports the broken pipe again as it ends."""
    try:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)
    except (OSError, ValueError, AttributeError):
        pass  # stdout is closed or is no file


if __name__ == "__main__":
    raise SystemExit(main())
