"""The turn in which a put becomes visible: room, record, names, all under the ledger's lock."""

from __future__ import annotations

import os
from time import monotonic, sleep

from . import files, ledger
from .eviction import PAUSE
from .ledger import Put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .content import Staged
    from .entry import Draft
    from .local import LocalStore

_RETRIES = 3

_NO_BLOBS: dict[str, int] = {}


def name_entry(store: LocalStore, draft: Draft, record: bytes, size: int, temporary: str, staged: list[Staged]) -> bool:
    """Make room, record, give blobs and entry their names; whether that was done, counted if not.

    ``temporary`` is the entry's file, ``size`` bytes, ``record`` what the ledger keeps of
    it. Takes the lock, more than once if it must; OSError passes through.
    """
    upkeep, path = store.upkeep, store.path(draft.digest)
    gone: list[int] = []
    retries, until = _RETRIES, 0.0
    while retries:
        if not store.acquire():
            return False
        try:
            # The usual case, nothing there and nothing to evict, costs a third less when asked first.
            if not staged and upkeep.has_room(size) and not files.access(path, os.F_OK):
                _name(store, path, temporary, record, size, -1, staged, _NO_BLOBS)
                return True
            replaced, blobs = _changes(store, path, staged)
            rounds = upkeep.rounds
            while admitted := upkeep.admit(need := _need(store, size, replaced, blobs)):
                if upkeep.rounds == rounds:
                    break
                # Making room may have removed the very entry we replace, or a blob we count on.
                rounds = upkeep.rounds
                before = replaced, blobs
                replaced, blobs = _changes(store, path, staged)
                if (replaced, blobs) == before:
                    break
            if admitted is False:
                return False
            # A blob that was in place when we looked may have been collected since, by us just now too:
            # then it has to be written after all, outside the lock.
            gone = [n for n, blob in enumerate(staged) if not blob.temporary and not store.blobs.exists(blob.address)]
            if admitted and not gone:
                _name(store, path, temporary, record, size, replaced, staged, blobs)
                return True
        finally:
            store.ledger.release()
        if admitted is None and upkeep.unfinished:
            until = until or monotonic() + ledger.LOCK_WAIT
            if monotonic() > until:
                store.counters.add("refused.crowded")
                return False
            sleep(PAUSE)
            continue
        if admitted is None and not upkeep.rebuild(need, ledger.LOCK_WAIT):
            store.counters.add("refused.rebuilding")
            return False
        for number in gone:
            staged[number] = store.blobs.stage(draft.artifacts[draft.large[number]])
        retries -= 1
    store.counters.add("refused.contended")
    return False


class Ready:
    """An entry without blobs whose file is written: ``size`` bytes at ``temporary``, for the ledger's ``record``."""

    __slots__ = ("draft", "record", "size", "temporary")

    def __init__(self, draft: Draft, record: bytes, size: int, temporary: str) -> None:
        self.draft = draft
        self.record = record
        self.size = size
        self.temporary = temporary


def name_together(store: LocalStore, ready: list[Ready]) -> set[str] | None:
    """Name these in one turn; the digests of those that have their names now. None when there was no turn to be had.

    Only what is new and fits as things are: whatever has to make room or to replace another is left to ``name_entry``,
    and so is what the disk does not take. Killed on the way, as there: records too many, never an entry without one.
    """
    if not store.acquire():
        return None
    named: set[str] = set()
    try:
        new = {item.draft.digest: item for item in ready if not files.access(store.path(item.draft.digest), os.F_OK)}
        total = sum(item.size for item in new.values())
        if store.durable or not new or not store.upkeep.has_room(total):
            return named
        book = store.ledger
        for item in new.values():
            book.append(item.record)
        book.bytes += total
        book.entries += len(new)
        book.save()
        try:
            for digest, item in new.items():
                _rename(item.temporary, store.path(digest))
                named.add(digest)
                store.written += item.size
        except OSError:
            _take_back(store, [item for digest, item in new.items() if digest not in named])
    except OSError:
        pass  # what has no name is tried by itself, and the error counted then; until counted anew totals are too high
    finally:
        store.ledger.release()
    return named


def _take_back(store: LocalStore, lost: list[Ready]) -> None:
    """These were recorded and did not get their names."""
    book = store.ledger
    for item in lost:
        book.forget(bytes.fromhex(item.draft.digest))
        book.bytes -= item.size
        book.entries -= 1
    book.save()


def _changes(store: LocalStore, path: str, staged: list[Staged]) -> tuple[int, dict[str, int]]:
    """The size of the file that is replaced, -1 for none, and the blobs that are new, with theirs."""
    try:
        replaced = files.stat(path, follow_symlinks=False).st_size
    except FileNotFoundError:
        replaced = -1
    return replaced, {blob.address: blob.size for blob in staged if not store.blobs.exists(blob.address)}


def _need(store: LocalStore, size: int, replaced: int, blobs: dict[str, int]) -> int:
    """How many bytes more will count against the cap."""
    return size - max(replaced, 0) + sum(blobs.values()) - (replaced < 0) * store.allowance


def _name(
    store: LocalStore,
    path: str,
    temporary: str,
    record: bytes,
    size: int,
    replaced: int,
    staged: list[Staged],
    blobs: dict[str, int],
) -> None:
    """Record the entry, then give it and its new ``blobs`` their names. Raises OSError; nothing is named then."""
    book = store.ledger
    new = size + sum(blobs.values()) if blobs else size
    book.append(record)
    # What is replaced is taken off when it is gone: killed before that, the total is too high, never too low.
    book.bytes += new
    book.entries += replaced < 0
    book.save()
    try:
        for blob in staged:
            store.blobs.adopt(blob)
        _rename(temporary, path)
    except OSError:
        # Take the record back. Blobs that have their names stay counted, and are collected as loose.
        named = {blob.address for blob in staged if blob.temporary is None}
        book.bytes -= new - sum(size for address, size in blobs.items() if address in named)
        if replaced < 0:
            book.forget(Put.unpack(record).digest)
            book.entries -= 1
        else:
            book.unknown = True  # the old entry is still there, under the new one's record
        book.save()
        raise
    if replaced > 0:
        book.bytes -= replaced
        book.save()
    store.written += new
    if store.durable:
        files.sync_directory(os.path.dirname(path))


def _rename(temporary: str, path: str) -> None:
    try:
        files.rename(temporary, path)
    except FileNotFoundError:
        _make_directories(path)
        files.rename(temporary, path)


def _make_directories(path: str) -> None:
    """The directory of an entry, and those of its fifteen neighbours, which will be needed as well.

    One missing directory costs a put twice its time; so sixteen puts pay in the life
    of a store and not two hundred and fifty-six.
    """
    directory = os.path.dirname(path)
    files.makedirs(directory)
    try:
        for digit in "0123456789abcdef":
            if digit != directory[-1]:
                files.makedirs(directory[:-1] + digit)
    except OSError:
        pass  # made when it is needed, or the error is met and counted then
