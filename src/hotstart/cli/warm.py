"""``hotstart warm``: build a program's packages ahead of time."""

from __future__ import annotations

import os
import sys

from ..errors import UsageError

HELP = """\
usage: hotstart warm [OPTION]… [--] SCRIPT [ARGUMENT]…

Run SCRIPT, a Python program, as hotstart run does, and build the package of every model
that it calls through hotstart.torch.compile before it goes on: for CI, so that the next
start loads them. A SCRIPT that is no .py file is run as a command.

{options}

example:
  hotstart warm --name serve serve.py --one-request"""


def main(arguments: list[str]) -> int:
    from .run import HELP as OF_RUN
    from .run import main as run
    from .run import parse

    if not arguments:
        raise UsageError("warm: no script was given; for example: hotstart warm serve.py")
    options, command = parse(arguments)
    if options is None:
        print(HELP.format(options=OF_RUN[OF_RUN.index("  --name") : OF_RUN.index("\n\nexamples")]))
        return 0
    given = arguments[: len(arguments) - len(command)]
    if command[0].endswith(".py"):
        command = [sys.executable, *command]
    os.environ["HOTSTART_TORCH_PROMOTE"] = "now"
    return run([*given, *([] if given[-1:] == ["--"] else ["--"]), *command])
