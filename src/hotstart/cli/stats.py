"""``hotstart stats``."""

from __future__ import annotations

from .options import Parser, configured, open_store
from .output import paint, print_json, say, table
from .progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(arguments: list[str]) -> int:
    parser = Parser(
        "stats",
        "Hits, misses, entries, bytes and seconds saved, by framework: over all runs that have ended.",
        "hotstart stats",
        "hotstart stats --prometheus > /var/lib/node_exporter/hotstart.prom",
    )
    parser.add_argument("--prometheus", action="store_true", help="print Prometheus' text format")
    options = parser.parse_args(arguments)
    from ..insight import stats
    from ..launch.environment import FRAMEWORKS

    _, home = configured()
    cache = open_store()
    store = cache.disk
    with Progress("reading entries", len(cache)) as bar:
        numbers = stats.gather(home, f"{home}/{FRAMEWORKS}", store, bar.step)
    if options.json:
        print_json(numbers)
    elif options.prometheus:
        print(stats.prometheus(numbers), end="")
    else:
        _show(numbers)
    return 0


def _show(found: dict[str, Any]) -> None:
    rows = found["frameworks"]
    noted = {event: number for event, number in found["models"].items() if number}
    if not rows and not noted:
        say("Nothing has been stored or counted yet; begin with: hotstart run COMMAND")
        return
    if rows:
        _show_frameworks(found)
    if noted:
        say(f"hotstart.torch.compile: {', '.join(f'{number:,} {event}' for event, number in noted.items())}")


def _show_frameworks(found: dict[str, Any]) -> None:
    from ..insight import words

    rows = found["frameworks"]
    body = [_row(name, row) for name, row in rows.items()]
    if len(rows) > 1:
        sums = {label: sum(row[label] for row in rows.values()) for label in next(iter(rows.values()))}
        body.append(_row("all", {**sums, "bytes": found["store"]["bytes"]}))
    heads = ("framework", "hits", "misses", "hit rate", "entries", "size", "saved")
    say(table(heads, body, right="<>>>>>>", total=len(rows) > 1))
    say()
    store, directories = found["store"], found["directories"]["bytes"]
    used = store["bytes"] + directories
    beside = f", {words.size(directories)} in redirected directories" if directories else ""
    part = f" ({used / store['max_size']:.0%} of {words.size(store['max_size'])})" if store["max_size"] else ""
    say(f"{words.size(store['bytes'])} in the store{beside}{part}")
    if store["quarantined"]:
        say(paint(f"{words.count(store['quarantined'], 'damaged file')} in quarantine; hotstart doctor", "yellow"))
    if found["runs"]:
        say(paint(f"{words.count(found['runs'], 'run')} since {words.clock(found['since'])}", "dim"))


def _row(name: str, row: dict[str, float]) -> tuple[str, ...]:
    from ..insight import words

    looked = row["hits"] + row["misses"]
    return (
        name,
        f"{row['hits']:,}" if looked else "–",
        f"{row['misses']:,}" if looked else "–",
        f"{row['hits'] / looked:.0%}" if looked else "–",
        f"{row['entries']:,}",
        words.size(row["bytes"]),
        words.duration(row["seconds_saved"]) if looked else "–",
    )
