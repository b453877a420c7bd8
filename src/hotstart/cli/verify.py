"""``hotstart verify``."""

from __future__ import annotations

from .options import Parser, open_store
from .output import paint, print_json, say
from .progress import Waiting


def main(arguments: list[str]) -> int:
    parser = Parser(
        "verify",
        "Read and check everything in the store. What is damaged goes to quarantine and will be\n"
        "compiled again. Exit status 1 if anything was damaged.",
        "hotstart verify",
    )
    options = parser.parse_args(arguments)
    cache = open_store()
    with Waiting("verifying"):
        report = cache.verify()
    damaged = report["damaged"]
    if options.json:
        print_json({"ok": len(report["ok"]), "damaged": damaged})
        return 1 if damaged else 0
    from ..insight import words

    if not report["ok"] and not damaged:
        say("There are no entries.")
        return 0
    say(f"{words.count(len(report['ok']), 'entry', 'entries')} sound")
    if damaged:
        them = "is" if len(damaged) == 1 else "are"
        where = "in quarantine" if cache.disk is not None and not cache.disk.unwritable else "left where it was"
        say(paint(f"{words.count(len(damaged), 'entry', 'entries')} damaged, {them} {where}:", "red"))
        for digest in damaged:
            say(f"  {digest}")
    return 1 if damaged else 0
