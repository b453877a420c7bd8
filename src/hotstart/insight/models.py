"""What ``hotstart.torch.compile`` noted of each model: ``HOME/torch/record.jsonl``, in the form of ``torch.record``.

Read here and not through ``hotstart.torch``: telling people why a model did not start hot
must not need torch.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Events, in the order in which people want to hear of them.
EVENTS = ("hit", "published", "handed", "plain", "skipped", "failed", "quarantined")

_SAID = {
    "hit": "started hot",
    "published": "its package was built and verified",
    "handed": "its package is being built",
    "plain": "runs as plain torch.compile",
    "skipped": "no package was built this time",
    "failed": "its package could not be built",
    "quarantined": "its package gave another result than eager, and is in quarantine",
}


def events(home: str) -> list[dict[str, Any]]:
    """Everything that was noted, oldest first; lines that are cut or of another form are passed over."""
    import json

    found = []
    for name in ("record.jsonl.1", "record.jsonl"):
        try:
            with open(f"{home}/torch/{name}", "rb") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("event") in EVENTS and isinstance(event.get("time"), int | float):
                found.append(event)
    return found


def during(home: str, start: float, end: float) -> list[dict[str, Any]]:
    """What happened between two times, in seconds; of each model and event the last."""
    return latest([event for event in events(home) if start <= event["time"] <= end])


def latest(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each model and kind of event the last, in the order in which they came."""
    last = {(event.get("name"), event["event"], event.get("reason")): event for event in found}
    return sorted(last.values(), key=lambda event: float(event["time"]))


def counted(home: str) -> dict[str, int]:
    """How often each event was noted, as far back as the file goes."""
    numbers = dict.fromkeys(EVENTS, 0)
    for event in events(home):
        numbers[event["event"]] += 1
    return numbers


def sentence(event: dict[str, Any]) -> str:
    """One event in words: what, why, and what would change it."""
    text = _SAID[event["event"]]
    if event["event"] == "published" and isinstance(event.get("seconds"), int | float):
        from .words import duration

        text += f" in {duration(event['seconds'])}"
    for label in ("reason", "advice"):
        if event.get(label):
            text += f"{':' if label == 'reason' else ';'} {event[label]}"
    return text
