"""``hotstart clear``."""

from __future__ import annotations

import sys

from ..errors import StoreError, UsageError
from .options import Parser, configured, open_store
from .output import print_json, say
from .progress import Waiting


def main(arguments: list[str]) -> int:
    parser = Parser(
        "clear",
        "Remove every entry and every file in the redirected directories. A program that runs now\n"
        "may lose what it has there. Records of runs and counters stay, unless --records.",
        "hotstart clear",
        "hotstart clear --yes --records",
    )
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    parser.add_argument("--records", action="store_true", help="forget runs and counters too")
    options = parser.parse_args(arguments)
    from ..launch import budget, records, totals
    from ..launch.environment import FRAMEWORKS

    _, home = configured()
    cache = open_store()
    entries, size = len(cache), cache.stats()["bytes"]
    if not options.yes and not _agreed(entries, size, home):
        say("Nothing was removed.")
        return 1
    if cache.disk is not None and cache.disk.unwritable and entries:
        raise StoreError(f"clear: {cache.path} cannot be written: {cache.disk.unwritable}")
    with Waiting("removing"):
        if entries or (cache.disk is not None and not cache.disk.unwritable):
            cache.clear()
        budget.clear(home, f"{home}/{FRAMEWORKS}")
        forgotten = records.clear(home) if options.records else 0
        if options.records:
            totals.clear(home)
    left = len(cache)
    if options.json:
        print_json({"removed": {"entries": entries - left, "bytes": size}, "left": left, "runs": forgotten})
    else:
        from ..insight import words

        say(f"removed {words.count(entries - left, 'entry', 'entries')}, {words.size(size)}")
    return 1 if left else 0


def _agreed(entries: int, size: int, home: str) -> bool:
    """Asked on a terminal; anywhere else ``--yes`` has to be said."""
    from ..insight import words

    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("clear: this removes everything and nobody can be asked here; say --yes")
    from ..launch.live import others

    what = f"{words.count(entries, 'entry', 'entries')}, {words.size(size)}"
    running = len(others(home, ""))
    if running:
        sys.stderr.write(f"{words.count(running, 'program')} under hotstart run may lose what it has there.\n")
    sys.stderr.write(f"Remove {what} from {home}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
