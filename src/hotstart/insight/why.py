"""Why something was compiled: of a run, of an entry, of a key.

    run      each framework's new units, put down to what changed against the nearest earlier run;
             units that had been there and are gone; what a hit built again; entries that
             programs made themselves (NVRTC, Triton's cache manager), compared by their keys
    entry    its key against the nearest earlier entry of the same kind and name

Frameworks that are seen only through their directory show no keys, so the recorded
contexts of the runs are compared (``changes``). A framework's own reason is named only
where it follows from what was recorded: where nothing differs, that is what is said.
"""

from __future__ import annotations

from ..launch import records
from ..store import files
from . import changes, fields, models
from .bearing import LIKELY, UNRELATED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..keys.key import Key
    from ..store.ledger import Put
    from ..store.local import LocalStore

    Record = dict[str, Any]

#: How many earlier runs are looked at for the nearest one and for units that were there before.
LOOKED_AT = 64

#: Entries of one run that are explained, the dearest first; the rest are counted.
_MOST_ENTRIES = 50

#: File systems take their times from a clock that ticks in milliseconds, over a network from another machine's.
_CLOCK = 10**9

_NAME = 40

#: Captured units are entries too, explained by their run and not by their key.
CAPTURE = "capture"

NEVER_SEEN = "never seen"
NOTHING_CHANGED = "nothing that is recorded changed; other inputs or shapes are the usual reason"


def explain_run(home: str, record: Record, store: LocalStore | None = None) -> Record:
    """The report on one run, as plain data: ``run``, ``frameworks`` and ``entries``."""
    earlier = [other for other in records.last(home, n=LOOKED_AT + 1) if _is_earlier(other, record)]
    report = {
        "run": {name: record.get(name) for name in ("id", "name", "command", "started", "seconds", "status")},
        "frameworks": [
            _framework(name, numbers, record, earlier) for name, numbers in sorted(_numbers(record).items())
        ],
        "entries": [],
        "entries_left_out": 0,
        "models": _models(home, record),
    }
    if store is not None and record.get("started"):
        _explain_entries(report, record, store)
    return report


def _models(home: str, record: Record) -> list[Record]:
    """What ``hotstart.torch.compile`` did in this run, and helpers that it started."""
    start = record.get("started")
    if not start:
        return []
    return models.during(home, start, start + float(record.get("seconds") or 0.0) + 1.0)


def _is_earlier(other: Record, record: Record) -> bool:
    return str(other.get("id", "")) < str(record.get("id", ""))


def _numbers(record: Record) -> dict[str, Any]:
    return {name: numbers for name, numbers in (record.get("frameworks") or {}).items() if isinstance(numbers, dict)}


# -- frameworks, by the contexts of runs ---------------------------------------------------


def _framework(name: str, numbers: Record, record: Record, earlier: list[Record]) -> Record:
    units = [unit for unit in record.get("units") or [] if unit.get("framework") == name]
    made = [unit for unit in units if unit.get("event") == "new"]
    rebuilt = numbers.get("rebuilt") or []
    answer: Record = {
        "framework": name,
        # None: the file system does not tell what was read.
        "hits": numbers.get("hits"),
        "restored": int(numbers.get("restored") or 0),
        "new": int(numbers.get("new") or len(made)),
        "rebuilt": list(rebuilt) if isinstance(rebuilt, (list, tuple)) else [],
        "rebuilt_count": len(rebuilt) if isinstance(rebuilt, (list, tuple)) else int(rebuilt),
        "left_alone": _listed(numbers.get("left_alone")),
        "damaged": [unit for unit in units if unit.get("event") == "damaged"],
        "lost": [],
        "causes": [],
        "compared_with": "",
        "status": "hit",
        "units": made,
    }
    if not answer["new"] and not answer["rebuilt_count"]:
        if not answer["hits"] and not answer["restored"]:
            answer["status"] = "not used"
        return answer
    # Built for a graph that was found: a hit to the framework, none to whoever waited for it.
    answer["status"] = "rebuilt" if answer["rebuilt_count"] >= answer["new"] else "miss"
    answer["lost"] = _lost(name, made, earlier)
    if answer["new"] and len(answer["lost"]) == answer["new"]:
        return answer  # every one of them was there before: nothing changed, they were removed
    nearest = _nearest(name, record, earlier)
    if nearest is None:
        answer["status"] = NEVER_SEEN
        return answer
    other, found = nearest
    answer["compared_with"] = other.get("id", "")
    level = max((change.bears_on(name) for change in found), default=UNRELATED)
    if level:
        answer["causes"] = [
            {**change.plain(), "likely": level == LIKELY} for change in found if change.bears_on(name) == level
        ]
    else:
        answer["status"] = "unexplained" if answer["new"] else "rebuilt"
    return answer


def _listed(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else []


def _lost(name: str, made: list[Record], earlier: list[Record]) -> list[Record]:
    """New units that an earlier run had: their key is the same, so they were removed since."""
    wanted = {(unit.get("unit"), unit.get("name")): unit for unit in made}
    found = []
    for other in earlier:  # newest first
        for unit in other.get("units") or []:
            same = unit.get("unit"), unit.get("name")
            if unit.get("framework") == name and same in wanted and unit.get("event") != "damaged":
                lost = wanted.pop(same)
                found.append({**lost, "seen": other.get("started"), "run": other.get("id")})
    return found


def called(unit: Record) -> str:
    """A unit as people read it: what it is and its name, of which digests need not be whole."""
    from .words import shorten

    what, name = str(unit.get("unit") or ""), shorten(str(unit.get("name") or ""), _NAME)
    return f"{what} {name}".strip() if name != what else name


def _nearest(name: str, record: Record, earlier: list[Record]) -> tuple[Record, list[changes.Change]] | None:
    """The earlier run with the fewest differences that bear on this framework; of the same workload if there is one."""
    context = record.get("context") or {}
    usable = [
        other
        for other in earlier
        if _used(other, name) and (other.get("context") or {}).get("version") == context.get("version")
    ]
    same = [other for other in usable if other.get("name") == record.get("name")]
    alike = [other for other in usable if (other.get("context") or {}).get("program") == context.get("program")]
    best: tuple[Record, list[changes.Change]] | None = None
    least = 0
    for other in same or alike:
        found = changes.compare(other.get("context") or {}, context)
        bearing = sum(change.bears_on(name) for change in found)
        if best is None or bearing < least:
            best, least = (other, found), bearing
    return best


def _used(record: Record, name: str) -> bool:
    numbers = _numbers(record).get(name) or {}
    return any(numbers.get(label) for label in ("hits", "new", "restored"))


def sentences(answer: Record) -> list[str]:
    """What is to be said of one framework of a report, each a line of its own."""
    from . import words

    status, new = answer["status"], answer["new"]
    said = [f"{called(unit)} was damaged and could not be used" for unit in answer["damaged"]]
    if answer["rebuilt_count"]:
        what = words.count(answer["rebuilt_count"], "unit")
        first = ", ".join(map(str, answer["rebuilt"][:3])) + (", …" if len(answer["rebuilt"]) > 3 else "")
        said.append(f"a hit, but {what} had to be built again" + (f": {first}" if first else ""))
    if answer["lost"]:
        when = max((unit.get("seen") or 0.0 for unit in answer["lost"]), default=0.0)
        those = words.count(len(answer["lost"]), "unit")
        verb = "is" if len(answer["lost"]) == 1 else "are"
        last = f", last seen {words.clock(when)}" if when else ""
        said.append(f"{those} had been compiled before and {verb} gone: evicted or cleared{last}")
    if status == NEVER_SEEN:
        said.append(f"{NEVER_SEEN}: no earlier run of this program compiled with it")
    elif status == "unexplained":
        said.append(NOTHING_CHANGED)
    causes = [cause["text"] for cause in answer["causes"]]
    if causes:
        sure = answer["causes"][0]["likely"]
        said += causes if sure else [f"perhaps: {text}" for text in causes]
    if status == "miss" and not said and new:
        said.append(NOTHING_CHANGED)
    return said


# -- entries, by their keys ------------------------------------------------------------------


def _explain_entries(report: Record, record: Record, store: LocalStore) -> None:
    start = int(record["started"] * 1e9)
    end = start + int(float(record.get("seconds") or 0.0) * 1e9) + 10**9
    made = [put for put in entries_made(store, start, end) if put.kind != CAPTURE]
    made.sort(key=lambda put: -put.cost)
    report["entries"] = [explain_entry(store, put) for put in made[:_MOST_ENTRIES]]
    report["entries_left_out"] = max(0, len(made) - _MOST_ENTRIES)


def entries_made(store: LocalStore, start: int, end: int) -> list[Put]:
    """Entries created between two moments, in nanoseconds.

    A file's time is its last use, never before it was made: those used last before
    ``start``, by more than the clock of the file system may be behind, need not be opened.
    """
    found = []
    for digest, path in files.walk(f"{store.root}/entries", 1):
        try:
            if files.stat(path, follow_symlinks=False).st_mtime_ns < start - _CLOCK:
                continue
            put = store.upkeep.describe(digest, path)
        except OSError:
            continue  # evicted meanwhile
        if put is not None and start <= put.created < end:
            found.append(put)
    return found


def explain_entry(store: LocalStore, put: Put) -> Record:
    """Why an entry had to be made: its key against the nearest one made before it."""
    digest = put.digest.hex()
    own = store.upkeep.fields(digest) or {}
    answer: Record = {
        "digest": digest,
        "kind": put.kind,
        "name": put.name,
        "cost": put.cost,
        "created": put.created / 1e9,
        "status": NEVER_SEEN,
        "nearest": "",
        "changed": {},
    }
    found = fields.nearest(store, put.kind, put.name, own, besides=digest, before=put.created)
    if found is not None:
        answer["status"], answer["nearest"], answer["changed"] = "changed", found[0], found[1]
    return answer


def explain_key(store: LocalStore | None, key: Key) -> Record:
    """Why ``key`` misses, or that it does not: for programs that hold the key itself."""
    answer: Record = {
        "digest": key.digest,
        "kind": key.kind,
        "name": key.name,
        "status": NEVER_SEEN,
        "nearest": "",
        "changed": {},
    }
    if store is None:
        return answer
    if store.contains(key.digest):
        answer["status"], answer["nearest"] = "hit", key.digest
        return answer
    found = fields.nearest(store, key.kind, key.name, key.fields())
    if found is not None:
        answer["status"], answer["nearest"], answer["changed"] = "changed", found[0], found[1]
    return answer


def find_entries(store: LocalStore, beginning: str, most: int = 10) -> list[Put]:
    """The entries whose digest begins so; at least two digits are needed to look."""
    if len(beginning) < 2 or not all(digit in "0123456789abcdef" for digit in beginning):
        return []
    found = []
    for rest, path in files.walk(f"{store.root}/entries/{beginning[:2]}", 0):
        digest = beginning[:2] + rest
        if digest.startswith(beginning):
            put = store.upkeep.describe(digest, path)
            if put is not None:
                found.append(put)
                if len(found) == most:
                    break
    return found
