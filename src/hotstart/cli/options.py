"""What the commands share: a parser whose complaints are one line, and the store as configured."""

from __future__ import annotations

import argparse

from ..errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ..cache import Cache
    from ..config import Config


class Parser(argparse.ArgumentParser):
    """``hotstart COMMAND``: with an example, ``--json``, and errors as UsageError."""

    def __init__(self, command: str, summary: str, *examples: str, json: str = "print JSON") -> None:
        shown = "\n".join(["examples:" if len(examples) > 1 else "example:", *(f"  {line}" for line in examples)])
        super().__init__(
            prog=f"hotstart {command}",
            description=summary,
            epilog=shown,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # an abbreviation that works today is another option tomorrow
        )
        self._command = command
        self.add_argument("--json", action="store_true", help=json)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self._command}: {message}; hotstart {self._command} --help shows an example")


def configured() -> tuple[Config, str]:
    """The settings, and the home directory they mean. Raises UsageError for a setting that makes no sense."""
    from ..config import home_directory, load

    config = load()
    return config, home_directory(config["home"])


def open_store() -> Cache:
    """The configured cache, without its memory tier; an empty one in memory where there is no store yet.

    Looking must not create anything. Raises UsageError when hotstart is turned off: then
    there is no store to speak of.
    """
    import os

    config, home = configured()
    if config["disable"]:
        raise UsageError(f"hotstart is turned off by {config.sources['disable']}")
    if not os.path.lexists(f"{home}/store"):
        from ..cache import Cache

        return Cache(None, memory=0)
    return config.open(memory=0, under=[])


def seconds(text: str) -> float:
    """``30d``, ``12h``, ``90m``, ``45s`` or a number of seconds. Raises ArgumentTypeError that says so."""
    units = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(digits) :]
    try:
        number = float(digits) * (units[unit] if unit else 1)
    except (ValueError, KeyError):
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write 30d, 12h, 90m or a number of seconds")
    return number
