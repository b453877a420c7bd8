"""Checks of the store: versions, locks, damage, times that cannot be."""

from __future__ import annotations

import os
import time

from ..errors import HotstartError
from ..store import files
from ..store.counters import Counters
from .doctor import ERROR, NOTE, WARNING, Finding
from .words import count, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .doctor import Patient

#: A lock that nobody holds and nobody touched for this long was left behind.
_STALE = 3600.0

#: Times so far ahead are no matter of clocks that differ a little.
_AHEAD = 300.0

_LOOKED_AT = 5000


def store(patient: Patient) -> Iterator[Finding]:
    """Whether it opens, and why not."""
    from ..store.local import LocalStore

    if not os.path.lexists(patient.store):
        return
    try:
        # Read-only first: opening for writing would put right what is to be reported.
        found = LocalStore(patient.store, Counters(), read_only=True)
    except HotstartError as error:
        yield Finding(ERROR, str(error).partition(";")[0], str(error).partition("; ")[2])
        return
    if found.unreadable:
        remedy = (
            "upgrade hotstart here, or give this version a home of its own: export HOTSTART_HOME=…"
            if "newer" in found.unreadable
            else f"see what is at {patient.store}"
        )
        yield Finding(ERROR, f"{patient.store} cannot be used: {found.unreadable}", remedy)
        return
    try:
        import sqlite3  # noqa: F401  # whether it is there is the question
    except ImportError:
        yield Finding(
            WARNING,
            "this Python has no sqlite3: making room in a full store has to walk all of it",
            "use a Python built with SQLite",
        )


def layers(patient: Patient) -> Iterator[Finding]:
    """Whether the stores under ours can be read: one that cannot is passed over without a word."""
    from ..store.local import LocalStore

    for path in patient.under:
        if not os.path.isdir(path):
            yield Finding(WARNING, f"{path}: there is no such layer", "correct HOTSTART_UNDER, or mount it there")
            continue
        try:
            found = LocalStore(path, Counters(), read_only=True, tier="layer")
        except HotstartError as error:
            yield Finding(
                ERROR, str(error).partition(";")[0], f"chmod -R go-w {path!r}; it may belong to you or to root"
            )
            continue
        unread = next((name for name in _sample(path) if not os.access(name, os.R_OK)), "")
        if found.unreadable or unread:
            why = found.unreadable or f"{unread} cannot be read"
            yield Finding(ERROR, f"the layer {path} cannot be used: {why}", f"as its owner: chmod -R a+rX {path!r}")
        elif not os.path.isfile(f"{path}/format"):
            yield Finding(
                WARNING, f"{path} is not a store", "a layer is the directory called store inside a HOTSTART_HOME"
            )


def _sample(store: str) -> Iterator[str]:
    """Its parts, and the first entry in it."""
    for name in ("format", "entries", "blobs"):
        if os.path.lexists(f"{store}/{name}"):
            yield f"{store}/{name}"
    for _, path in files.walk(f"{store}/entries", 1):
        yield path
        return
    for path in _files(f"{store}/entries"):
        yield path


def locks(patient: Patient) -> Iterator[Finding]:
    """Locks that were left behind by what was killed. Those that are held are somebody's."""
    now = time.time()
    for path in _torch_locks(patient.root):
        age = _age(path, now)
        if age is not None and age > _STALE:
            yield Finding(
                ERROR,
                f"{path} was left by a build that died {duration(age)} ago: every later build waits for it for ever",
                f"rm {path!r}",
            )
    abandoned = [
        path
        for path in _files(f"{patient.store}/flights")
        if (age := _age(path, now)) is not None and age > _STALE and not _is_held(path)
    ]
    if abandoned:
        them = "it is" if len(abandoned) == 1 else "they are"
        yield Finding(
            NOTE,
            f"{count(len(abandoned), 'lock file')} of compiles that were killed; {them} harmless",
            "hotstart gc removes them",
        )
    held = f"{patient.store}/ledger"
    if os.path.exists(held) and _is_held(held, 2.0):
        yield Finding(
            WARNING,
            f"{held} has been locked for two seconds: nothing can be stored meanwhile",
            f"a stopped process holds it; find it with: fuser {held!r}",
        )


def _torch_locks(root: str) -> list[str]:
    """The file batons of torch.utils.cpp_extension: the one lock among the frameworks' that outlives its holder."""
    place = f"{root}/torch-extensions"
    try:
        names = files.listdir(place)
    except OSError:
        return []
    return [path for name in names if os.path.isfile(path := f"{place}/{name}/lock")]


def _files(directory: str) -> list[str]:
    try:
        return [f"{directory}/{name}" for name in files.listdir(directory)[:_LOOKED_AT]]
    except OSError:
        return []


def _age(path: str, now: float) -> float | None:
    try:
        return now - files.stat(path, follow_symlinks=False).st_mtime
    except OSError:
        return None  # gone meanwhile


def _is_held(path: str, wait: float = 0.0) -> bool:
    """Whether somebody holds the lock on it, also after ``wait`` seconds."""
    try:
        fd = files.open(path, files.READ)
    except OSError:
        return False
    try:
        deadline = time.monotonic() + wait
        while True:
            try:
                files.flock(fd, files.LOCK_EX | files.LOCK_NB)
                return False
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return True
                time.sleep(0.05)  # flock has no time-out, and a person waits for the answer
            except OSError:
                return False  # no locks here: another check's matter
    finally:
        files.close_quietly(fd)


def quarantine(patient: Patient) -> Iterator[Finding]:
    """Damage that was found and set aside."""
    found = _files(f"{patient.store}/quarantine")
    if found:
        yield Finding(
            WARNING,
            f"{count(len(found), 'damaged file')} set aside in {patient.store}/quarantine",
            "a few after a power cut are normal; more mean a failing disk. Then: hotstart verify. "
            f"They can be removed: rm -r {patient.store + '/quarantine'!r}",
        )


def future(patient: Patient) -> Iterator[Finding]:
    """Entries used at a time that has not come: they would never be evicted."""
    limit = time.time() + _AHEAD
    ahead = 0
    for number, (_, path) in enumerate(files.walk(f"{patient.store}/entries", 1)):
        if number >= _LOOKED_AT:
            break
        try:
            ahead += files.stat(path, follow_symlinks=False).st_mtime > limit
        except OSError:
            continue
    if ahead:
        them = "was" if ahead == 1 else "were"
        yield Finding(
            WARNING,
            f"{count(ahead, 'entry', 'entries')} {them} last used in the future: a clock was or is wrong",
            "set the clock by NTP; then: find STORE/entries -type f -newermt now -exec touch {} +".replace(
                "STORE", patient.store
            ),
        )


def run_records(patient: Patient) -> Iterator[Finding]:
    """Records that do not check."""
    from ..launch import records

    found = records.last(patient.home, n=records.KEPT)
    if found.damaged:
        yield Finding(
            NOTE,
            f"{count(found.damaged, 'record')} of runs cannot be read and "
            f"{'is' if found.damaged == 1 else 'are'} passed over",
            f"rm -r {records.directory(patient.home)!r} forgets all runs; nothing else is lost",
        )
