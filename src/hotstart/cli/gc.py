"""``hotstart gc``."""

from __future__ import annotations

import argparse

from ..errors import StoreError
from ..launch.environment import FRAMEWORKS
from ..launch.tidy import Tidied, tidy
from .options import Parser, configured, open_store, seconds
from .output import print_json, say
from .progress import Waiting


def main(arguments: list[str]) -> int:
    parser = Parser(
        "gc",
        "Remove what was not used lately, then down to a size: files in the redirected directories that\n"
        "the store has too, then entries. Puts accounts right after a crash. "
        "What a running program uses stays.",
        "hotstart gc --older-than 30d",
        "hotstart gc --max-size 5GiB --dry-run",
    )
    parser.add_argument(
        "--max-size", type=_size, metavar="SIZE", help='leave at most this, directories included: "5GiB"'
    )
    parser.add_argument(
        "--older-than", type=seconds, metavar="TIME", help="remove what was not used for so long: 30d, 12h"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
    options = parser.parse_args(arguments)
    config, home = configured()
    cache = open_store()
    if cache.disk is None:
        return _say(Tidied(), 0, 0, options)
    if cache.disk.unwritable and not options.dry_run:
        raise StoreError(f"gc: {cache.path} cannot be written: {cache.disk.unwritable}")
    with Waiting("collecting"):
        done = tidy(
            config,
            home,
            f"{home}/{FRAMEWORKS}",
            max_size=options.max_size,
            older_than=options.older_than,
            dry_run=options.dry_run,
        )
        entries, left = cache.disk.totals()
    return _say(done, entries, left, options)


def _say(done: Tidied, entries: int, left: int, options: argparse.Namespace) -> int:
    if options.json:
        removed = {"entries": done.entries, "bytes": done.bytes, "seconds": done.seconds, "directories": done.files}
        remaining = {"entries": entries, "bytes": left, "directories": done.left}
        print_json({"dry_run": options.dry_run, "removed": removed, "left": remaining})
        return 0
    from ..insight import words

    verb = "would remove" if options.dry_run else "removed"
    again = f", {words.duration(done.seconds)} to compile again" if done.seconds else ""
    beside = f", and {words.size(done.files)} of files that the store has too" if done.files else ""
    say(f"{verb} {words.count(done.entries, 'entry', 'entries')}, {words.size(done.bytes)}{again}{beside}")
    if not options.dry_run:
        directories = f", {words.size(done.left)} in redirected directories" if done.left else ""
        say(f"{words.count(entries, 'entry', 'entries')} left, {words.size(left)}{directories}")
    return 0


def _size(text: str) -> int:
    from ..errors import SizeError
    from ..store.sizes import parse_size

    try:
        return parse_size(int(text) if text.isdigit() else text, "--max-size", zero=True)
    except SizeError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--max-size: ")) from None
