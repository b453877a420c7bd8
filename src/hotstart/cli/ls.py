"""``hotstart ls``."""

from __future__ import annotations

import time

from .options import Parser, open_store
from .output import paint, print_json, say, table
from .progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..store.ledger import Put
    from ..store.local import LocalStore

_ORDERS = ("used", "size", "cost", "created", "name")


def main(arguments: list[str]) -> int:
    parser = Parser(
        "ls",
        "The entries of the store, what was used last first.",
        "hotstart ls",
        "hotstart ls triton --sort cost --long",
    )
    parser.add_argument("framework", nargs="?", help="only entries of this framework or kind")
    parser.add_argument("--long", action="store_true", help="with digests, times, who made them and who signed them")
    parser.add_argument("--sort", choices=_ORDERS, default="used", help="what comes first (default: used)")
    parser.add_argument("-n", "--limit", type=int, default=0, metavar="N", help="at most N entries")
    options = parser.parse_args(arguments)
    cache = open_store()
    store = cache.disk
    puts = _found(store, len(cache), options)
    shown = puts[: options.limit] if options.limit > 0 else puts
    if options.json:
        print_json([_plain(store, put, options.long) for put in shown])
        return 0
    _show(store, shown, puts, options)
    return 0


def _found(store: LocalStore | None, total: int, options: Any) -> list[Put]:
    from ..insight.listing import entries, framework_of

    if store is None:
        return []
    with Progress("reading entries", total) as bar:
        puts = [
            put
            for put in entries(store, bar.step)
            if not options.framework or options.framework in (framework_of(put), put.kind)
        ]
    if options.sort == "name":
        puts.sort(key=lambda put: (framework_of(put), put.name, put.digest))
    elif options.sort == "size":
        puts.sort(key=lambda put: -_size(put))
    else:
        puts.sort(key=lambda put: -getattr(put, options.sort))
    return puts


def _size(put: Put) -> int:
    return put.size + sum(size for _, size in put.blobs)


def _plain(store: LocalStore | None, put: Put, long: bool) -> dict[str, Any]:
    from ..insight.listing import details, framework_of

    row = {
        "digest": put.digest.hex(),
        "framework": framework_of(put),
        "kind": put.kind,
        "name": put.name,
        "bytes": _size(put),
        "cost": put.cost,
        "created": put.created / 1e9,
        "used": put.used / 1e9,
    }
    if long and store is not None:
        row["provenance"] = details(store, put.digest.hex()).get("provenance", {})
    return row


def _show(store: LocalStore | None, shown: list[Put], all: list[Put], options: Any) -> None:
    from ..insight import words
    from ..insight.listing import framework_of

    if not all:
        what = f" of {options.framework}" if options.framework else ""
        say(f"There are no entries{what}.")
        return
    now = time.time()
    body = []
    for put in shown:
        row = [
            framework_of(put),
            words.size(_size(put)),
            words.duration(put.cost) if put.cost else "–",
            words.ago(now - put.used / 1e9),
        ]
        if options.long:
            row += [words.clock(put.created / 1e9), put.digest.hex()[:16], *_makers(store, put)]
        body.append([*row, _called(store, put)])
    more = ["created", "digest", "made by", "signed by"] if options.long else []
    heads = ["framework", "size", "cost", "used", *more, "name"]
    say(table(heads, body, right="<>>>"))
    total = sum(map(_size, all))
    cost = sum(put.cost for put in all)
    rest = f" of {len(all):,}" if len(shown) < len(all) else ""
    again = f", {words.duration(cost)} to compile again" if cost else ""
    say()
    those = "entry" if len(shown) == 1 and not rest else "entries"
    say(paint(f"{len(shown):,}{rest} {those}, {words.size(total)}{again}", "dim"))


def _makers(store: LocalStore | None, put: Put) -> tuple[str, str]:
    """What made it; the key that signed it and the scope it came from, if it came from a remote."""
    from ..insight.listing import details

    made = details(store, put.digest.hex()).get("provenance", {}) if store is not None else {}
    signer = f"{made['signer'] or 'nobody'} ({made.get('scope', '?')})" if "signer" in made else "–"
    return str(made.get("producer", "?")), signer


def _called(store: LocalStore | None, put: Put) -> str:
    """A name for people: of captured units the first, and how many there are besides."""
    from ..insight.listing import CAPTURE, details

    if put.kind != CAPTURE or store is None:
        return put.name or "–"
    meta = details(store, put.digest.hex()).get("meta", {})
    units = meta.get("units") or []
    if not units:
        part = meta.get("part")
        return f"{meta.get('group', '?')}, part {part + 1}" if isinstance(part, int) and part else put.name
    first = units[0]
    what = " ".join(str(word) for word in first[:2]) if isinstance(first, (list, tuple)) else str(first)
    return what if len(units) == 1 else f"{what} and {len(units) - 1:,} more"
