"""``hotstart gc`` for store and redirected directories together: by age, then down to a size.

Files that the store has too go first: they are given back when a workload wants them. Then
entries. What a live run uses stays, and so do files that the store never had.
"""

from __future__ import annotations

import os
import time

from . import inventory as inventories
from . import parcel
from .budget import trim
from .live import Turn
from .restore import note
from .session import Session
from .survey import Survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..config import Config
    from .inventory import Inventory

_EVERYTHING = 1 << 62


class Tidied:
    """What was removed, or would be: ``entries`` with their ``bytes`` and ``seconds`` of compiling; ``files``, in
    bytes, of the redirected directories; and what is ``left`` there."""

    __slots__ = ("bytes", "entries", "files", "left", "seconds")

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0
        self.seconds = 0.0
        self.files = 0
        self.left = 0

    def add(self, evicted: dict[str, float]) -> None:
        self.entries += int(evicted["entries"])
        self.bytes += int(evicted["bytes"])
        self.seconds += evicted["seconds"]


def tidy(
    config: Config, home: str, root: str, *, max_size: int | None, older_than: float | None, dry_run: bool = False
) -> Tidied:
    """Remove what was not used for ``older_than`` seconds, then down to ``max_size`` bytes in all.

    Raises StoreError and UsageError when there is no store to open.
    """
    done = Tidied()
    session = Session(config, home, root, (), "gc")
    try:
        with Turn(home, 10.0) as mine:
            known = inventories.load(home) if mine and os.path.isdir(root) else None
            if known is None:
                done.add(session.cache.gc(max_size=max_size, older_than=older_than, dry_run=dry_run))
                return done
            survey = Survey(root, known.paths())
            if not dry_run:
                _tell(session, known, survey)
            _by_age(session, known, survey, done, older_than, dry_run)
            _by_size(session, known, survey, done, max_size, dry_run)
            if not dry_run:
                note(session, known, Survey(root, known.paths()))
            done.left = survey.bytes
    finally:
        session.end()
    return done


def _tell(session: Session, known: Inventory, survey: Survey) -> None:
    """Let the store know when its units were used: reading them in a directory does not touch their entries."""
    store = session.store
    if store is None or store.unwritable:
        return
    for group, names in known.members().items():
        found = known.groups.get(group)
        used = max((survey.units[name].used for name in names if name in survey.units), default=0)
        if found is None or not used:
            continue
        for part in range(found.parts):
            digest = parcel.key(found.framework, found.name, part).digest
            if _last_use(store.path(digest)) < used:
                store.touch(digest, min(used, time.time_ns()))


def _last_use(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns
    except OSError:
        return _EVERYTHING  # not there: nothing to tell


def _by_age(
    session: Session, known: Inventory, survey: Survey, done: Tidied, older_than: float | None, dry_run: bool
) -> None:
    if older_than is None:
        if not dry_run:
            done.add(session.cache.gc())  # puts accounts right, and takes what expired
        return
    limit = time.time_ns() - int(older_than * 1e9)
    young = {
        group
        for group, names in known.members().items()
        if any(survey.units[name].used >= limit for name in names if name in survey.units)
    }
    # Before the store: what it has lost could not be told from what it never had.
    done.files += _trim(session, known, survey, _EVERYTHING, young, dry_run)
    done.add(session.cache.gc(older_than=older_than, dry_run=dry_run))


def _by_size(
    session: Session, known: Inventory, survey: Survey, done: Tidied, max_size: int | None, dry_run: bool
) -> None:
    if max_size is None:
        return
    held = session.store.totals()[1] if session.store is not None else 0
    excess = held - (done.bytes if dry_run else 0) + survey.bytes - max_size
    if excess > 0:
        done.files += _trim(session, known, survey, excess, set(), dry_run)
    allowed = max(0, max_size - survey.bytes)
    if held > allowed:
        done.add(session.cache.gc(max_size=allowed, dry_run=dry_run))


def _trim(session: Session, known: Inventory, survey: Survey, excess: int, spared: set[str], dry_run: bool) -> int:
    """As ``budget.trim``; with ``dry_run`` what it could remove at most, and only the survey says so."""
    if not dry_run:
        return trim(session, known, survey, excess, spared)
    sizes = [
        sum(survey.units[name].size for name in names if name in survey.units)
        for group, names in known.members().items()
        if group not in spared
    ]
    gone = 0
    for size in sorted(sizes):
        if gone >= excess:
            break
        gone += size
    survey.bytes -= gone
    return gone
