"""``hotstart why``: what the last run compiled, and what had changed."""

from __future__ import annotations

from ..errors import HotstartError
from .options import Parser, configured, open_store
from .output import paint, print_json, say
from .progress import Waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..store.local import LocalStore

_SHOWN_UNITS = 5
_SHOWN_MODELS = 20


def main(arguments: list[str]) -> int:
    parser = Parser(
        "why",
        "Why the last run compiled what it compiled: for each miss, what changed against the nearest\n"
        "earlier run or entry.",
        "hotstart why",
        "hotstart why --name serve --long",
        "hotstart why 3fa9c1e2      # the entry or run whose digest or id begins so",
    )
    parser.add_argument("what", nargs="?", metavar="KEY", help="an entry's digest or a run's id, or how it begins")
    parser.add_argument("--name", help="the last run of this workload")
    parser.add_argument("--long", action="store_true", help="every unit and entry, not the first few")
    options = parser.parse_args(arguments)
    _, home = configured()
    store = open_store().disk
    if options.what:
        return _of(options.what, home, store, options)
    return _of_run(home, store, options)


def _of_run(home: str, store: LocalStore | None, options: Any) -> int:
    from ..insight import models
    from ..insight.why import explain_run
    from ..launch import records

    found = records.last(home, options.name)
    if not found and options.name is None:
        noted = models.latest(models.events(home))[-_SHOWN_MODELS:]
        newest = _newest(store, _SHOWN_MODELS if options.long else _SHOWN_UNITS)
        if noted or newest:
            return _without_a_run(noted, newest, options)
    if not found:
        whose = f" of {options.name!r}" if options.name else ""
        raise HotstartError(f"why: no run{whose} is recorded; runs are recorded by: hotstart run COMMAND")
    with Waiting("comparing"):
        report = explain_run(home, found[0], store)
    if found.damaged:
        report["damaged_records"] = found.damaged
    _show(report, options)
    if not options.json and not any(answer["new"] for answer in report["frameworks"]) and not report["entries"]:
        _point_back(home, options.name)
    return 0


def _point_back(home: str, name: str | None) -> None:
    """A run that compiled nothing leaves nothing to explain: name the last one that did."""
    from ..insight import words
    from ..launch import records

    for record in records.last(home, name, n=records.KEPT):
        numbers = [row for row in (record.get("frameworks") or {}).values() if isinstance(row, dict)]
        if any(row.get("new") for row in numbers):
            when = words.clock(record.get("started") or 0.0)
            say()
            say(paint(f"the last run that compiled something, {when}: hotstart why {record.get('id')}", "dim"))
            return


def _newest(store: LocalStore | None, most: int) -> list[dict[str, Any]]:
    """The entries that programs made last by themselves, each explained."""
    from ..insight.listing import CAPTURE, entries
    from ..insight.why import explain_entry

    if store is None:
        return []
    with Waiting("comparing"):
        made = sorted((put for put in entries(store) if put.kind != CAPTURE), key=lambda put: -put.created)
        return [explain_entry(store, put) for put in made[:most]]


def _without_a_run(noted: list[dict[str, Any]], newest: list[dict[str, Any]], options: Any) -> int:
    """Programs that use the Python API without ``hotstart run``: what they stored last."""
    if options.json:
        print_json({"models": noted, "entries": newest})
        return 0
    _show_models(noted)
    for answer in newest:
        _show_entry(answer)
    return 0


def _show_models(noted: list[dict[str, Any]]) -> None:
    from ..insight.models import sentence

    for event in noted:
        style = "green" if event["event"] in ("hit", "published", "handed") else "yellow"
        say(f"{paint(str(event.get('name') or '?'), style)}: {sentence(event)}")


def _of(what: str, home: str, store: LocalStore | None, options: Any) -> int:
    from ..insight.why import explain_entry, explain_run, find_entries
    from ..launch import records

    record = records.read(home, what)
    if record is not None:
        _show(explain_run(home, record, store), options)
        return 0
    entries = find_entries(store, what.lower()) if store is not None else []
    runs = records.matching(home, what)
    if not entries and len(runs) > 1:
        raise HotstartError(f"why: {len(runs)} runs begin with {what!r}; the last one is {runs[-1]}")
    if not entries:
        raise HotstartError(f"why: no run and no entry begins with {what!r}; hotstart ls --long lists the digests")
    answers = [explain_entry(store, put) for put in entries if store is not None]
    if options.json:
        print_json(answers)
    else:
        for answer in answers:
            _show_entry(answer)
    return 0


def _show(report: dict[str, Any], options: Any) -> None:
    if options.json:
        print_json(report)
        return
    from ..insight import words
    from ..insight.why import sentences

    run = report["run"]
    command = words.shorten(" ".join(run["command"] or []), 70)
    status = "" if run["status"] in (0, None) else f", exit status {run['status']}"
    started = words.clock(run["started"]) if run["started"] else ""
    say(f"{paint(run['name'] or command, 'bold')}  {command}")
    say(paint(f"{started}, took {words.duration(run['seconds'] or 0.0)}{status}, run {run['id']}", "dim"))
    used = [answer for answer in report["frameworks"] if answer["status"] != "not used"]
    for answer in used:
        say()
        _show_framework(answer, sentences(answer), options.long)
    for answer in report["entries"] if options.long else report["entries"][:_SHOWN_UNITS]:
        say()
        _show_entry(answer)
    if report["models"]:
        say()
        _show_models(report["models"])
    more = report["entries_left_out"] + (0 if options.long else max(0, len(report["entries"]) - _SHOWN_UNITS))
    if more:
        say()
        say(f"and {words.count(more, 'more entry', 'more entries')}; hotstart why --long, or --json")
    if not used and not report["entries"] and not report["models"]:
        say()
        say("No framework compiled or loaded anything in this run.")
    for answer in report["frameworks"]:
        if answer["left_alone"]:
            say(paint(f"{answer['framework']}: left alone, you had set {', '.join(answer['left_alone'])}", "dim"))


def _show_framework(answer: dict[str, Any], said: list[str], long: bool) -> None:
    from ..insight import words
    from ..insight.why import called

    parts = ["hits not known here" if answer["hits"] is None else words.count(answer["hits"], "hit")]
    if answer["restored"]:
        parts.append(f"{answer['restored']:,} restored")
    parts.append(f"{answer['new']:,} compiled")
    style = "green" if answer["status"] == "hit" else "yellow"
    say(f"{paint(answer['framework'], style)}: {', '.join(parts)}")
    for line in said:
        say(f"  {line}")
    units = sorted(answer["units"], key=lambda unit: -(unit.get("cost") or 0.0))
    for unit in units if long else units[:_SHOWN_UNITS]:
        cost = f"  {words.duration(unit['cost'])}" if unit.get("cost") else ""
        say(paint(f"    {called(unit)}{cost}", "dim"))
    if not long and len(units) > _SHOWN_UNITS:
        say(paint(f"    and {len(units) - _SHOWN_UNITS:,} more", "dim"))


def _show_entry(answer: dict[str, Any]) -> None:
    from ..insight import words

    what = f"{answer['kind']} {answer['name']}".strip()
    cost = f", {words.duration(answer['cost'])} to compile" if answer.get("cost") else ""
    say(f"{paint(what, 'yellow')}  {answer['digest'][:12]}{cost}")
    if answer["status"] == "changed":
        for text in answer["changed"].values():
            say(f"  {text}")
        if not answer["changed"]:
            say("  the same key is there as well")
        say(paint(f"    compared with {answer['nearest'][:12]}", "dim"))
    else:
        say(f"  {answer['status']}")
