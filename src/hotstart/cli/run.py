"""``hotstart run``: its options, by hand, because argparse costs more than all else that happens here."""

from __future__ import annotations

from ..errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELP = """\
usage: hotstart run [OPTION]… [--] COMMAND [ARGUMENT]…

Run COMMAND with every framework's cache in the store: what it compiled before is given
back, what it compiles now is kept. Its input, output, terminal, signals and exit status
are its own.

  --name NAME       call this workload NAME in records and explanations (the command's own name else)
  --only LIST       these frameworks alone, with commas: --only torch,triton
  --force           redirect also what you have set yourself
  --dry-run         show what would be set; start nothing
  --grace SECONDS   how long keeping what was compiled may take after COMMAND was told to stop,
                    and publishing it after any end (20)
  --prefetch NAME   bring what workload NAME has in the remote first, also; may be repeated
  -q, --quiet       print nothing of our own
  --json            print the record of the run on stderr, as JSON; with --dry-run the plan, on stdout
  -h, --help        show this

examples:
  hotstart run python train.py --epochs 3
  hotstart run --name serve --only torch,triton -- python -m serve
  hotstart run --name train --prefetch base python train.py"""

#: Options that take a value, and what they are called further on.
_VALUED = {"--name": "name", "--only": "only", "--grace": "grace", "--prefetch": "prefetch"}
_SWITCHES = {"--force": "force", "--dry-run": "dry_run", "--quiet": "quiet", "-q": "quiet", "--json": "json"}


def main(arguments: list[str]) -> int:
    options, command = parse(arguments)
    if options is None:
        print(HELP)
        return 0
    as_json = options.pop("json")
    if as_json and options["dry_run"]:
        return _print_plan(options)
    from ..launch.run import run

    if not as_json:
        return run(command, **options)
    options["quiet"] = True
    status = run(command, **options)
    _print_record(status)
    return status


def parse(arguments: list[str]) -> tuple[dict[str, Any] | None, list[str]]:
    """The options of ``launch.run.run`` (with ``json`` beside them) and the command; None instead of them for --help.

    Options end at the first argument that is none, or at ``--``. Raises UsageError.
    """
    options: dict[str, Any] = dict.fromkeys(_SWITCHES.values(), False)
    options.update(name=None, only=None, grace=None, prefetch=[])
    at = 0
    while at < len(arguments):
        argument = arguments[at]
        if argument == "--":
            at += 1
            break
        if not argument.startswith("-") or argument == "-":
            break
        at += 1
        if argument in ("-h", "--help"):
            return None, []
        name, assigned, value = argument.partition("=")
        if name in _VALUED:
            if not assigned:
                if at == len(arguments):
                    raise UsageError(f"run: {name} needs a value; hotstart run --help shows an example")
                value = arguments[at]
                at += 1
            if name == "--prefetch":
                options["prefetch"].append(_read(name, value))
            else:
                options[_VALUED[name]] = _read(name, value)
        elif argument in _SWITCHES:
            options[_SWITCHES[argument]] = True
        else:
            raise UsageError(f"run: unknown option {argument!r}; options of the command go after it, or after --")
    command = arguments[at:]
    if not command or not command[0]:
        raise UsageError("run: no command was given; for example: hotstart run python train.py")
    return options, command


def _read(name: str, value: str) -> object:
    if name in ("--name", "--prefetch"):
        from ..launch.names import check_name

        return check_name(value)
    if name == "--only":
        return frameworks("run", value)
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise UsageError(f"run: --grace is a number of seconds, not {value!r}")
    return seconds


def frameworks(command: str, value: str) -> list[str]:
    """The names in ``--only``, each known to the table. Raises UsageError."""
    from ..compilers.frameworks import chosen

    names = [name for part in value.split(",") if (name := part.strip())]
    if not names:
        raise UsageError(f"{command}: --only names frameworks with commas between them, such as torch,triton")
    return [row.name for row in chosen(names)]


def _print_plan(options: dict[str, Any]) -> int:
    """``--dry-run --json``: on stdout, since no program writes there."""
    import json
    import os

    from ..config import home_directory, load
    from ..launch.environment import FRAMEWORKS, plan

    config = load()
    root = f"{os.path.abspath(home_directory(config['home']))}/{FRAMEWORKS}"
    made = plan(root, os.environ, options["only"], force=options["force"])
    variables = {} if config["disable"] else made.variables
    print(json.dumps({"variables": variables, "left_alone": made.left}, indent=2))
    return 0


def _print_record(status: int) -> None:
    import json
    import sys

    from ..launch import records

    record = records.written or {"status": status}
    try:
        print(json.dumps(record, ensure_ascii=False), file=sys.stderr)
    except (OSError, ValueError, AttributeError):
        pass  # stderr is closed: there is nobody to tell
