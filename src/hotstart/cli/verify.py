"""``hotstart verify``."""

from __future__ import annotations

import os

from .options import Parser, configured, open_store
from .output import paint, print_json, say
from .progress import Waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..launch.verify import Report

_SHOWN = 20


def main(arguments: list[str]) -> int:
    parser = Parser(
        "verify",
        "Read and check everything in the store, and the redirected directories against it. A damaged\n"
        "entry goes to quarantine and will be compiled again; a damaged file is repaired from the store.\n"
        "Exit status 1 if anything was damaged.",
        "hotstart verify",
        "hotstart verify --no-repair --json",
    )
    parser.add_argument("--no-repair", action="store_true", help="leave damaged files in directories as they are")
    options = parser.parse_args(arguments)
    _, home = configured()
    cache = open_store()
    with Waiting("verifying"):
        entries = cache.verify()
        # Only where there is something to compare: looking must not create anything.
        known = os.path.exists(f"{home}/launch/inventory")
        directories = _verify_directories(repair=not options.no_repair) if known else None
    bad = bool(entries["damaged"] or (directories is not None and (directories.damaged or directories.repaired)))
    if options.json:
        print_json({"ok": len(entries["ok"]), "damaged": entries["damaged"], "directories": _plain(directories)})
    else:
        aside = cache.disk is not None and not cache.disk.unwritable
        _show(entries, directories, "in quarantine now" if aside else "left where they were")
    return int(bad)


def _verify_directories(*, repair: bool) -> Report:
    from ..launch.verify import verify

    return verify(repair=repair)


def _plain(report: Report | None) -> dict[str, Any]:
    if report is None:
        return {"ok": 0, "unknown": 0, "repaired": [], "damaged": []}
    return {name: getattr(report, name) for name in ("ok", "unknown", "repaired", "damaged")}


def _show(entries: dict[str, list[str]], directories: Report | None, where: str) -> None:
    from ..insight import words

    if not entries["ok"] and not entries["damaged"]:
        say("There are no entries.")
    else:
        say(f"{words.count(len(entries['ok']), 'entry', 'entries')} sound")
    _list(entries["damaged"], f"{words.count(len(entries['damaged']), 'entry', 'entries')} damaged, {where}:", "red")
    if directories is None:
        return
    say(f"{words.count(directories.ok, 'file')} in redirected directories as stored")
    _list(directories.repaired, f"{words.count(len(directories.repaired), 'file')} repaired from the store:", "yellow")
    _list(directories.damaged, f"{words.count(len(directories.damaged), 'file')} damaged and not repaired:", "red")
    if directories.unknown:
        say(paint(f"{words.count(directories.unknown, 'file')} that the store does not hold, or that change", "dim"))


def _list(items: list[str], head: str, style: str) -> None:
    if items:
        say(paint(head, style))
        for item in items[:_SHOWN]:
            say(f"  {item}")
        if len(items) > _SHOWN:
            say(f"  and {len(items) - _SHOWN:,} more")
