"""``hotstart gc``."""

from __future__ import annotations

import argparse

from .options import Parser, open_store, seconds
from .output import print_json, say
from .progress import Waiting


def main(arguments: list[str]) -> int:
    parser = Parser(
        "gc",
        "Remove what was not used lately, then down to a size; put accounts right after a crash.\n"
        "What a running program uses stays.",
        "hotstart gc --older-than 30d",
        "hotstart gc --max-size 5GiB --dry-run",
    )
    parser.add_argument("--max-size", type=_size, metavar="SIZE", help='leave at most this: "5GiB"')
    parser.add_argument(
        "--older-than", type=seconds, metavar="TIME", help="remove what was not used for so long: 30d, 12h"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
    options = parser.parse_args(arguments)
    cache = open_store()
    if cache.disk is not None and cache.disk.unwritable and not options.dry_run and len(cache):
        from ..errors import StoreError

        raise StoreError(f"gc: {cache.path} cannot be written: {cache.disk.unwritable}")
    with Waiting("collecting"):
        gone = cache.gc(max_size=options.max_size, older_than=options.older_than, dry_run=options.dry_run)
        entries, left = (len(cache), cache.stats()["bytes"])
    if options.json:
        print_json({"dry_run": options.dry_run, "removed": gone, "left": {"entries": entries, "bytes": left}})
        return 0
    from ..insight import words

    verb = "would remove" if options.dry_run else "removed"
    again = f", {words.duration(gone['seconds'])} to compile again" if gone["seconds"] else ""
    say(f"{verb} {words.count(int(gone['entries']), 'entry', 'entries')}, {words.size(gone['bytes'])}{again}")
    if not options.dry_run:
        say(f"{words.count(entries, 'entry', 'entries')} left, {words.size(left)}")
    return 0


def _size(text: str) -> int:
    from ..errors import SizeError
    from ..store.sizes import parse_size

    try:
        return parse_size(int(text) if text.isdigit() else text, "--max-size", zero=True)
    except SizeError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--max-size: ")) from None
