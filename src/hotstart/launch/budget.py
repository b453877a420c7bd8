"""One budget: entries of the store and files of the redirected directories together stay below the cap.

A unit that is in the store may be taken off the disk, the least recently used first; it is
given back when a workload that used it runs again. What a live run has read or written since
it began is not taken from under it: its own files are all that the cap can be exceeded by.
"""

from __future__ import annotations

import os

from ..store import files
from . import places
from .inventory import Inventory, label
from .live import others
from .usage import reads_are_known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from .session import Session
    from .survey import Name, Survey


def room(session: Session, survey: Survey) -> int:
    """Bytes that may still be added; negative when there is too much already.

    What cannot be taken away counts for half of the cap at most: or else a download larger than the
    cap would empty the store at every run, and the cap would still not be kept.
    """
    store = session.store
    held = store.totals()[1] if store is not None else 0
    loose = max(0, survey.loose - session.max_size // 2)
    return session.max_size - held - survey.bytes + loose


def make_room(session: Session, known: Inventory, survey: Survey, need: int, wanted: Collection[str]) -> int:
    """Room for restoring ``need`` bytes, taking other groups than the ``wanted`` off the disk; what there is then."""
    free = room(session, survey)
    if free < need:
        free += trim(session, known, survey, need - free, wanted)
    return max(0, free)


def before_capture(session: Session, known: Inventory, survey: Survey, new: list[Name]) -> None:
    """Limit the store so that it and what was on disk before this run stay below the cap while entries are added."""
    store = session.store
    if store is None:
        return
    cap = session.max_size
    fresh = sum(survey.units[name].size for name in new)
    before = survey.bytes - fresh - max(0, survey.loose - cap // 2)
    if room(session, survey) < 0 and before > cap // 2:
        before -= trim(session, known, survey, before - cap // 2, _groups(known, new))
    store.max_size = max(1, cap - before)


def keep(session: Session, known: Inventory, survey: Survey, used: list[Name]) -> None:
    """After a run: bring both together below the cap.

    The store gives way first, down to what leaves room for what this run used (half of the
    cap at most): entries that can never be laid out on disk make nobody start hot.
    """
    store = session.store
    if store is None or room(session, survey) >= 0:
        return
    cap = session.max_size
    working = sum(survey.units[name].size for name in used if name in survey.units)
    spare = _groups(known, used)
    trim(session, known, survey, -room(session, survey), spare)
    if room(session, survey) < 0:
        session.cache.gc(max_size=max(_left(cap, survey), cap - min(working, cap // 2)))
    if room(session, survey) < 0:
        trim(session, known, survey, -room(session, survey), ())
    if room(session, survey) < 0:
        _drop_unstored(session, known, survey)
    if room(session, survey) < 0:
        session.cache.gc(max_size=_left(cap, survey))


def _left(cap: int, survey: Survey) -> int:
    """What the directories leave to the store."""
    return max(0, cap - survey.bytes + max(0, survey.loose - cap // 2))


def trim(session: Session, known: Inventory, survey: Survey, excess: int, spared: Collection[str]) -> int:
    """Take stored groups off the disk until ``excess`` bytes are gone, the least recently used first; bytes gone."""
    since = _in_use_since(session)
    candidates = []
    for group, names in known.members().items():
        there = [survey.units[name] for name in names if name in survey.units]
        if there and group not in spared and _is_stored(session, known, group):
            used = max(unit.used for unit in there)
            if used < since:
                candidates.append((used, group, names))
    candidates.sort()
    gone = 0
    for _, group, names in candidates:
        if gone >= excess:
            break
        known.trimmed.add(group)
        gone += sum(_remove(session, survey, name) for name in names)
    return gone


def _drop_unstored(session: Session, known: Inventory, survey: Survey) -> None:
    """Last of all: units that the store could not take. Nothing is left of them but what the next compile makes."""
    since = _in_use_since(session)
    found = []
    answers: dict[str, bool] = {}
    for name, unit in survey.units.items():
        before = known.units.get(name)
        group = label(name[0], before.group) if before is not None else ""
        if group not in answers:
            answers[group] = _is_stored(session, known, group)
        if unit.used < since and not answers[group]:
            found.append((unit.used, name))
    found.sort()
    for _, name in found:
        if room(session, survey) >= 0:
            return
        _remove(session, survey, name)
        known.units.pop(name, None)


def _is_stored(session: Session, known: Inventory, group: str) -> bool:
    from . import parcel

    found = known.groups.get(group)
    if found is None:
        return False
    return all(session.has(parcel.key(found.framework, found.name, part).digest) for part in range(found.parts))


def _in_use_since(session: Session) -> int:
    """What was used at or after this time may be in use by another live run. 0: everything may be."""
    began = others(session.home, session.id)
    if not began:
        return 1 << 63
    return min(began) if reads_are_known(session.root) else 0


def _remove(session: Session, survey: Survey, name: Name) -> int:
    """Take one unit off the disk; the bytes that are free."""
    unit = survey.units.pop(name, None)
    if unit is None:
        return 0
    base = f"{session.root}/{unit.row.directory}"
    gone = 0
    for path, file in unit.files.items():
        whole = f"{base}/{path}"
        if places.unlink(whole):
            gone += file.size
            places.prune(os.path.dirname(whole), base)
    survey.bytes -= gone
    return gone


def _groups(known: Inventory, names: list[Name]) -> set[str]:
    return {label(name[0], known.units[name].group) for name in names if name in known.units}


def clear(home: str, root: str) -> None:
    """Remove every file of the redirected directories and what is noted of them; the store is the caller's.

    A live run loses what it has there: for ``hotstart clear``, which says so.
    """
    from . import state
    from .live import Turn

    with Turn(home, 10.0):
        state.forget(home)
        places.unlink(f"{state.directory(home)}/inventory")
        for name in _listed(root):
            path = f"{root}/{name}"
            if os.path.isdir(path) and not os.path.islink(path):
                places.remove_tree(path)
            else:
                places.unlink(path)


def _listed(root: str) -> list[str]:
    try:
        return files.listdir(root)
    except OSError:
        return []
