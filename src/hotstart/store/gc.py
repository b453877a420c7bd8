"""What a person or a timer asks for: collect, verify, clear, sweep.

Each works directory by directory, with the lock held for a few of them at a time,
so that a store of a million entries is checked while others use it.
"""

from __future__ import annotations

import os
import sys
import time

from ..keys.digest import decode
from ..log import say
from . import files
from .content import DamagedBlobError, digest_named, remove
from .entry import DamagedError, OtherVersionError, read_entry
from .eviction import LOOKS, PAUSE, Evicted
from .index import IndexGoneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .eviction import Room
    from .local import LocalStore

#: A temporary file or an abandoned lock this old belongs to nobody alive.
ORPHAN_AGE = 3600.0

#: So long, in seconds, a turn goes on to the next directory before it lets others have theirs.
_TURN = 0.01

_PAIRS = [f"{n:02x}" for n in range(256)]


def collect(
    store: LocalStore, *, max_size: int | None = None, older_than: float | None = None, dry_run: bool = False
) -> Evicted | None:
    """Remove what expired, what was not used for ``older_than`` seconds, and then down to ``max_size``.

    Also puts index and totals right where a crash left them wrong, and sweeps
    temporary files. None when the store cannot be written or its index not be had.
    """
    if store.unwritable:
        return None
    if not dry_run:
        sweep_temporary(store)
        _sweep_flights(store)
        done = 0
        while done < len(_PAIRS):
            first = done

            def some(room: Room, first: int = first) -> None:
                nonlocal done
                done = first  # again from here, when the index had to be rebuilt first
                until = time.monotonic() + _TURN
                while done < len(_PAIRS) and (done == first or time.monotonic() < until):
                    _reconcile(store, room, _PAIRS[done])
                    done += 1

            if turn(store, some) is None:
                return None
    store.upkeep.before_eviction()
    now = time.time_ns()
    looks = LOOKS if not dry_run else sys.maxsize  # nothing that a dry run finds out lasts until another turn
    steps: list[Callable[[Room], None]] = [_put_right] if not dry_run else []
    if older_than is not None:
        used = now - int(older_than * 1e9)
        steps.append(lambda room: room.take_older("used", used, looks=looks))
    if store.ttl_ns:
        steps.append(lambda room: room.take_older("created", now - store.ttl_ns, looks=looks))
    if max_size is not None:
        steps.append(lambda room: room.make(max_size, max_size, ahead=0, looks=looks))
    steps.append(lambda room: room.collect_blobs())
    return _in_turns(store, steps, dry_run)


def _put_right(room: Room) -> None:
    room.recount()
    room.collect_blobs()


def _in_turns(store: LocalStore, steps: list[Callable[[Room], None]], dry_run: bool) -> Evicted | None:
    """All steps, each in as many turns as it takes, or in one turn together where nothing is to last."""
    whole = Evicted()
    number = 0
    while number < len(steps):
        first = number

        def some(room: Room, first: int = first) -> None:
            nonlocal number
            number = first  # again from here, when the index had to be rebuilt first
            while number < len(steps):
                room.unfinished = False
                steps[number](room)
                if room.unfinished:
                    return
                number += 1
                if not dry_run:
                    return

        evicted = turn(store, some, dry_run=dry_run)
        if evicted is None:
            return None
        whole.add(evicted)
        if number < len(steps) and not dry_run:
            time.sleep(PAUSE)
    return whole


def turn(store: LocalStore, work: Callable[[Room], None], *, dry_run: bool = False) -> Evicted | None:
    """One turn of the lock with the index, rebuilding that first when it is gone.

    None where that cannot be had: a store that is not ours to write has no turns.
    """
    if store.unwritable:
        return None
    for _ in range(2):
        if not store.acquire():
            return None
        try:
            if store.ledger.unknown and store.upkeep.is_empty():
                store.ledger.begin()
            return store.upkeep.with_index(work, dry_run=dry_run)
        except IndexGoneError:
            pass  # and once more, with a new one
        except OSError as error:
            store.counters.error("gc", error)
            return None
        finally:
            store.ledger.release()
        if not store.upkeep.rebuild():
            return None
    return None


def _reconcile(store: LocalStore, room: Room, pair: str) -> None:
    """Make the index say what is on the disk, for one of the 256 directories of entries and of blobs."""
    first, last = bytes.fromhex(pair + "00" * 31), bytes.fromhex(pair + "ff" * 31)
    ledger, index = room.ledger, room.index
    known = index.between("blobs", first, last)
    for rest, path in files.walk(f"{store.blobs.root}/{pair}", 1, strict=True):
        name = digest_named(pair + rest)
        if name is not None:
            size = files.stat(path, follow_symlinks=False).st_size
            before = known.pop(name, None)
            if before != size:
                index.add_blob(name, size)
                ledger.bytes += size - (before or 0)
    for name, size in known.items():
        index.lose_blob(name)
        ledger.bytes -= size
    known = index.between("entries", first, last)
    for rest, path in files.walk(f"{store.root}/entries/{pair}", 0, strict=True):
        name = digest_named(pair + rest)
        if name is not None:
            before = known.pop(name, None)
            if before is None or before != files.stat(path, follow_symlinks=False).st_size:
                put = store.upkeep.describe(pair + rest, path)
                if put is not None:
                    index.apply([put], index.inflation)
                    ledger.entries += before is None
                    ledger.bytes += put.size - (before or 0)
    for name, size in known.items():
        index.remove(name)
        ledger.entries -= 1
        ledger.bytes -= size


def digests(store: LocalStore, kind: str | None) -> list[str]:
    """Of all entries or of those of one kind, as the index has them; none where it cannot be had."""
    found: list[bytes] = []
    turn(store, lambda room: found.extend(room.index.of_kind(kind)))
    return [digest.hex() for digest in found]


def verify(store: LocalStore) -> dict[str, list[str]]:
    """Read everything: entries by their checksum, blobs by their BLAKE3 as well.

    Returns the digests that were sound (``ok``) and those that were not
    (``damaged``), which are in quarantine afterwards unless the store is read-only.
    """
    report: dict[str, list[str]] = {"ok": [], "damaged": []}
    if store.unreadable:
        return report
    wrong, unread = _verify_blobs(store)
    for digest, path in files.walk(f"{store.root}/entries", 1):
        if digest_named(digest) is None:
            continue
        try:
            fd = files.open(path, files.READ)
        except FileNotFoundError:
            continue  # evicted since it was listed
        except OSError as error:
            store.counters.error("verify", error)
            report["damaged"].append(digest)
            continue
        try:
            info = files.fstat(fd)
            entry, blobs = read_entry(fd, digest, store.tier)
            for name, (address, _) in blobs.items():
                if address in unread:
                    raise unread[address]
                if address in wrong or store.blobs.status(address) is None:
                    raise DamagedError(f"its artifact {name!r} is missing or damaged")
            decode(entry.about())
            report["ok"].append(digest)
        except OtherVersionError:
            continue
        except (DamagedError, ValueError) as error:
            if store.holds(digest, info):  # else evicted or replaced, and its blobs with it
                report["damaged"].append(digest)
                store.found_damaged(digest, info, str(error))
        except OSError as error:
            report["damaged"].append(digest)
            store.counters.error("verify", error)
        finally:
            files.close_quietly(fd)
    return report


def _verify_blobs(store: LocalStore) -> tuple[set[str], dict[str, OSError]]:
    """Read every blob: which are not what they are named after, and which could not be read.

    The former are moved aside, if that may be done here; the latter stay.
    """
    wrong = set()
    unread = {}
    for address in store.blobs:
        try:
            for _ in store.blobs.pieces(address, deep=True):
                pass
        except DamagedBlobError as error:
            wrong.add(address)
            store.counters.add("corrupt")
            store.set_aside_blob(address, error.identity)
        except FileNotFoundError:
            continue  # collected since it was listed
        except OSError as error:
            unread[address] = error
    return wrong, unread


def clear(store: LocalStore) -> bool:
    """Everything out, in one rename each: readers find either all or nothing."""
    if store.unwritable or not store.acquire():
        return False
    trash = f"{store.root}/tmp/{files.unique_name()}"
    try:
        store.upkeep.drop_index()
        files.makedirs(trash)
        for name in ("entries", "blobs", "quarantine"):
            try:
                files.rename(f"{store.root}/{name}", f"{trash}/{name}")
            except FileNotFoundError:
                continue
        for name in ("entries", "blobs"):
            files.makedirs(f"{store.root}/{name}")
        store.ledger.begin()
    except OSError as error:
        store.counters.error("clear", error)
        return False
    finally:
        store.ledger.release()
        _remove_tree(trash)
    return True


def sweep_temporary(store: LocalStore) -> None:
    """Remove what writers that are long gone left behind."""
    for path in _old_files(f"{store.root}/tmp"):
        if os.path.isdir(path) and not os.path.islink(path):
            _remove_tree(path)
        else:
            remove(path)
        store.counters.add("swept")


def _sweep_flights(store: LocalStore) -> None:
    """Lock files whose owners died; one that is still locked stays."""
    for path in _old_files(f"{store.root}/flights"):
        try:
            fd = files.open(path, files.READ)
            try:
                files.flock(fd, files.LOCK_EX | files.LOCK_NB)
                files.unlink(path)
            finally:
                files.close(fd)
        except OSError:
            continue


def _old_files(directory: str) -> list[str]:
    try:
        limit = time.time() - ORPHAN_AGE
        with files.scandir(directory) as found:
            return [item.path for item in found if item.stat(follow_symlinks=False).st_mtime < limit]
    except OSError:
        return []


def _remove_tree(path: str) -> None:
    import shutil

    def note(_function: object, where: str, error: object) -> None:
        say("info", f"{where} was left behind: {error}")

    shutil.rmtree(path, onerror=note)
