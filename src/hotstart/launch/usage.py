"""Which units a run read, and what the new ones cost: told from the times of files.

A file system that keeps the time of the last read (``relatime`` does, for a file not read
since it last changed) says which units were read. Each that was is made ready to say so
again, by setting its times to what they are. With ``noatime`` nobody knows, and the record
says so instead of guessing.
"""

from __future__ import annotations

import os
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .inventory import Inventory
    from .session import Session
    from .survey import Found, Name, Survey

#: From ``sys/statvfs.h``; ``os.ST_NOATIME`` where there is one.
_NOATIME = getattr(os, "ST_NOATIME", 1024)

#: A pause between two compiles longer than this, in seconds, is the program at its own work.
_PAUSE = 120.0


def reads_are_known(root: str) -> bool:
    try:
        return not os.statvfs(root).f_flag & _NOATIME
    except OSError:
        return False


def hits(session: Session, known: Inventory, survey: Survey, new: list[Name]) -> list[Name]:
    """The units that were there before and were read since the run began; each is an event."""
    from .session import Event

    session.reads_known = reads_are_known(session.root)
    if not session.reads_known:
        return []
    fresh = set(new)
    found = []
    for name, unit in survey.units.items():
        before = known.units.get(name)
        if before is None or name[0] not in session.rows:
            continue
        read = max(file.read for file in unit.files.values())
        if read < session.began_ns or read <= before.read:
            continue
        if name not in fresh:
            found.append(name)
            session.events.append(Event(name, "hit", before.cost, unit.size))
        before.read = read
        arm(session, unit)
    return found


def arm(session: Session, unit: Found) -> None:
    """Have the next read of its files noted.

    Setting times changes the time of the last change, and a file that changed since it was read is noted again."""
    base = f"{session.root}/{unit.row.directory}"
    for path, file in unit.files.items():
        if file.read > file.modified:
            try:
                os.utime(f"{base}/{path}", ns=(file.read, file.modified), follow_symlinks=False)
            except OSError:
                continue  # gone, or somebody else's: its next read goes unseen


def costs(session: Session, survey: Survey, new: list[Name]) -> dict[Name, float]:
    """What each new unit took to make, in seconds: an estimate from when its files were written.

    Units are put in the order in which they were finished, and each is charged the time since
    the one before it, the first the time since its own first file. Compiles that ran side by
    side share the time that passed, so that the sum is what the user waited.
    """
    prices = dict.fromkeys(new, 0.0)
    spans = []
    for name in new:
        times = [file.modified for file in survey.units[name].files.values() if file.modified >= session.began_ns]
        if times:
            spans.append((max(times), min(times), name))
    spans.sort()
    if spans:
        last, first, name = spans[0]
        prices[name] = (last - first) / 1e9
    for (before, _, _), (last, first, name) in pairwise(spans):
        gap = (last - before) / 1e9
        prices[name] = gap if gap <= _PAUSE else (last - first) / 1e9
    return prices
