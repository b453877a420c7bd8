"""What a run did: the record that ``why`` and ``stats`` read, and the line that people see at its end."""

from __future__ import annotations

import time

from .. import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .child import Ended
    from .environment import Plan
    from .session import Session


def frameworks(session: Session, planned: Plan) -> dict[str, dict[str, Any]]:
    """For each framework that did something or was left alone what happened, in numbers.

    ``hits`` is None where the file system does not tell what was read. ``rebuilt`` counts units
    that were made again although the framework had found what they belong to: a hit that is not
    complete is none to whoever waits for it, and saves only what was not built again.
    """
    found: dict[str, dict[str, Any]] = {}
    for event in session.events:
        numbers = found.setdefault(event.name[0], _nothing(session))
        if event.event == "hit":
            numbers["hits"] += 1
            numbers["seconds_saved"] += event.cost
        elif event.event == "new":
            numbers["new"] += 1
            numbers["bytes"] += event.size
        elif event.event == "restored":
            numbers["restored"] += 1
        elif event.event == "damaged":
            numbers["damaged"] = numbers.get("damaged", 0) + 1
    for framework, kept in planned.left.items():
        found.setdefault(framework, _nothing(session))["left_alone"] = list(kept)
    for framework, row in session.rows.items():
        if row.linked and framework in found:
            _count_rebuilt(session, framework, found[framework])
    return found


def _nothing(session: Session) -> dict[str, Any]:
    return {
        "hits": 0 if session.reads_known else None,
        "new": 0,
        "restored": 0,
        "bytes": 0,
        "seconds_saved": 0.0,
        "left_alone": [],
        "rebuilt": 0,
    }


def _count_rebuilt(session: Session, framework: str, numbers: dict[str, Any]) -> None:
    """New code without a new graph was built for a graph that was found."""
    new = [event for event in session.events if event.name[0] == framework and event.event == "new"]
    if not numbers["hits"] or any(event.name[1].startswith("graph") for event in new):
        return
    again = [event for event in new if event.name[1].startswith(("generated code", "Triton kernel", "device code"))]
    numbers["rebuilt"] = len(again)
    numbers["seconds_saved"] = max(0.0, numbers["seconds_saved"] - sum(event.cost for event in again))


def record(session: Session, planned: Plan, command: list[str], environ: dict[str, str], ended: Ended) -> None:
    """Keep what this run did."""
    from . import records
    from .context import gather

    rows = [row for name, row in session.rows.items() if any(event.name[0] == name for event in session.events)]
    records.write(
        session.home,
        {
            "id": session.id,
            "name": session.workload,
            "command": list(command),
            "started": session.began,
            "seconds": time.time() - session.began,
            "status": ended.code,
            "version": __version__,
            "frameworks": frameworks(session, planned),
            "units": [
                {
                    "framework": event.name[0],
                    "unit": event.name[1],
                    "name": event.name[2],
                    "event": event.event,
                    "cost": event.cost,
                }
                for event in session.events
            ],
            **({"remote": session.shared["pulled"]} if "pulled" in session.shared else {}),
            "troubles": session.troubles[:32],
            "context": gather(command, environ, rows, root=session.root),
        },
    )


def line(session: Session, planned: Plan) -> str:
    """One line for a terminal; "" when there is nothing to say."""
    found = frameworks(session, planned)
    said = []
    saved = sum(numbers["seconds_saved"] for numbers in found.values())
    for name, numbers in found.items():
        words = []
        if numbers["hits"]:
            words.append(_count(numbers["hits"], "hit"))
        if numbers["new"]:
            words.append(f"{numbers['new']} new ({_bytes(numbers['bytes'])})")
        if numbers["restored"]:
            words.append(f"{numbers['restored']} restored")
        if numbers["rebuilt"]:
            words.append(f"{numbers['rebuilt']} built again")
        if words:
            said.append(f"{name} {', '.join(words)}")
    for verb, moved in session.shared.items():
        if moved["entries"]:
            said.append(f"{verb} {_bytes(moved['bytes'])}")
    left = [variable for kept in planned.left.values() for variable in kept]
    if not said and not left:
        return ""
    if saved >= 0.05:
        said.append(f"{_seconds(saved)} saved")
    if left:
        said.append(f"left alone: {', '.join(left)}")
    store = session.store
    if store is not None and session.events:
        said.append(f"store {_bytes(store.totals()[1])}")
    return "; ".join(said)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
