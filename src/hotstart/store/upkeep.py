"""Upkeep: the index kept up, room made, the store counted anew after a crash.

Everything here is off the path of a hit. ``admit`` and ``with_index`` run with
the ledger's lock held; ``rebuild`` takes it itself, for a short turn at the end,
so that other processes go on meanwhile.
"""

from __future__ import annotations

import time
from errno import EISDIR, ELOOP, ENXIO

from ..log import say
from . import files, pins
from .content import digest_named, remove
from .entry import DamagedError, Summary
from .eviction import LOW_WATERMARK, Evicted, Room
from .index import Index, IndexGoneError
from .ledger import FIRST_GENERATION, LONG, Put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .local import LocalStore

#: What opening says of a name that is no regular file: a link, a socket. It can never become an entry again.
_NO_FILE = (ELOOP, EISDIR, ENXIO)

#: Whoever waits for another's rebuild looks this often, in seconds.
_REBUILD_PAUSE = 5e-3

#: Connections of a parent process. Closing one in a child could roll back a
#: transaction the parent is in the middle of, so they are kept, unused, for ever.
_inherited: list[Index] = []


class Upkeep:
    """What one open store does besides reading and writing."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.ledger = store.ledger
        self.counters = store.counters
        self._path = f"{store.root}/index.sqlite"
        self._index: Index | None = None
        self._identity = (0, 0)
        #: Descriptors of locks held by threads that rebuild, for a child to close.
        self._rebuilding: set[int] = set()
        #: How often this process has worked with the index: whether anything can have been evicted since.
        self.rounds = 0
        #: Whether ``admit`` has more entries to look at before it can say.
        self.unfinished = False
        #: Called before anything is chosen for eviction, so that uses in memory count.
        self.before_eviction: Callable[[], None] = lambda: None

    # -- admission, under the lock ---------------------------------------------

    def has_room(self, size: int) -> bool:
        """Whether an entry of ``size`` bytes more can be taken in as things are."""
        ledger = self.ledger
        return (
            ledger.bytes + size <= self.store.max_size + (ledger.entries + 1) * self.store.allowance
            and ledger.tail < LONG
            and not ledger.unknown
        )

    def admit(self, need: int) -> bool | None:
        """Room for ``need`` more bytes, evicting if it must.

        None: not yet. The store has to be counted first or, when ``unfinished``, to be looked at further.
        """
        ledger, cap = self.ledger, self.store.max_size
        if ledger.unknown and self.is_empty():
            ledger.begin()
        fits = self._held() + need <= cap and not ledger.unknown
        if fits and ledger.tail < LONG:
            return True
        if not fits:
            self.before_eviction()

        def make(room: Room) -> None:
            room.make(cap - need, self._floor(need))
            self.unfinished = room.unfinished

        try:
            self.with_index(make)
        except IndexGoneError as error:
            self.unfinished = False
            say("info", f"{self._path}: {error}; it will be rebuilt")
            return True if fits else None
        if self.unfinished:
            return None
        if self._held() + need > cap:
            self.counters.add("refused.full")
            return False
        return True

    def _held(self) -> int:
        return self.ledger.bytes - self.ledger.entries * self.store.allowance

    def _floor(self, need: int) -> int:
        cap = self.store.max_size
        return max(0, min(cap - need, int(cap * LOW_WATERMARK)))

    def with_index(self, work: Callable[[Room], None], *, dry_run: bool = False) -> Evicted:
        """Bring the index up to date, let ``work`` evict, and make both lasting.

        With ``dry_run`` nothing is removed and nothing lasts: only the answer is real.

        The index is committed before the ledger: a process killed in between leaves
        a generation that the index already has, and then the totals are added up anew.
        """
        ledger = self.ledger
        if ledger.unknown:
            raise IndexGoneError("the ledger was lost")
        index = self._open_index()
        self.rounds += 1
        try:
            index.begin()
            interrupted = index.generation == ledger.generation
            if not interrupted and index.generation != ledger.generation - 1:
                raise IndexGoneError("it belongs to another state of the store")
            index.apply(ledger.records(), index.inflation, self._as_it_is)
            if ledger.unknown:
                raise IndexGoneError("the ledger is damaged")
            if interrupted:
                ledger.entries, ledger.bytes = index.totals()
            index.generation = ledger.generation
            room = self._room(index, dry_run)
            work(room)
            evicted = room.done()
            if dry_run:
                index.rollback()
                return evicted
            index.commit()
        except IndexGoneError:
            self.drop_index()
            raise
        except (TypeError, ValueError, OverflowError) as error:
            # SQLite has no checksums: a damaged page may pass for sound and hold what no index would.
            self.drop_index()
            raise IndexGoneError(str(error)) from error
        except BaseException:
            self._forget_index()  # and with it the transaction, which would lock others out
            raise
        ledger.taken()
        if evicted.entries:
            self.counters.add("evicted", evicted.entries)
            self.counters.add("evicted_bytes", evicted.bytes)
        return evicted

    def _room(self, index: Index, dry_run: bool) -> Room:
        unlink, unlink_blob = (self._unlink, self._unlink_blob) if not dry_run else (_pretend, _pretend)
        return Room(
            index,
            self.ledger,
            self.store.policy,
            pins.pinned(self.store),
            self._last_use,
            unlink,
            unlink_blob,
            self.store.allowance,
        )

    def _last_use(self, digest: bytes) -> int | None:
        try:
            return files.stat(self.store.path(digest.hex()), follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:
            return None
        except OSError as error:
            self.counters.error("evict", error)
            return 0  # there, as far as anybody knows

    def _unlink(self, digest: bytes) -> bool | None:
        return self._removed(self.store.path(digest.hex()))

    def _unlink_blob(self, address: bytes) -> bool | None:
        return self._removed(self.store.blobs.path(address.hex()))

    def _removed(self, path: str) -> bool | None:
        """True: removed. None: it was not there. False: it could not be removed."""
        try:
            files.unlink(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.counters.error("evict", error)
            return False
        return True

    def is_empty(self) -> bool:
        """No entry and no blob: then nothing has to be counted."""
        root = self.store.root
        try:
            return not files.listdir(f"{root}/entries") and not files.listdir(f"{root}/blobs")
        except OSError:
            return False

    # -- the index -------------------------------------------------------------

    def _open_index(self) -> Index:
        """The index, opened anew when another process has put a rebuilt one in its place."""
        try:
            identity = _identity(self._path)
        except FileNotFoundError:
            self._forget_index()
            if self.ledger.generation != FIRST_GENERATION:
                raise IndexGoneError("it is missing") from None
            # Everything that is in the store is still in the ledger: no walk is needed.
            self._index = Index(self._path, create=True)
            self._identity = _identity(self._path)
            return self._index
        except OSError as error:
            raise IndexGoneError(str(error)) from error
        if self._index is None or self._identity != identity:
            self._forget_index()
            self._index = Index(self._path)
            self._identity = identity
        return self._index

    def _forget_index(self) -> None:
        if self._index is not None:
            self._index.close()
        self._index, self._identity = None, (0, 0)

    def drop_index(self) -> None:
        """It cannot be used: away with it, a rebuild makes another."""
        self._forget_index()
        remove(self._path)
        remove(self._path + "-journal")

    def rebuild(self, need: int = 0, wait: float = 0.0) -> bool:
        """Walk the files, count them and make a new index; others read and write meanwhile.

        Where there can be no index, make room for ``need`` bytes while we are at it.
        False when it cannot be done here, or when another is at it, unless that one
        ends within ``wait`` seconds: then that was the rebuild.
        """
        try:
            lock = self._rebuild_lock()
        except BlockingIOError:
            return self._rebuilt_by_another(wait)
        except OSError as error:
            self.counters.error("rebuild", error)
            return False
        self._rebuilding.add(lock)
        fresh = f"{self.store.root}/tmp/{files.unique_name()}"
        try:
            generation = self._begin_rebuild()
            return generation is not None and self._rebuild_from(generation, fresh)
        except IndexGoneError as error:
            say("warning", f"{self.store.root}: no index: {error}", once="no index")
            return self._evict_by_walking(need)
        except OSError as error:
            self.counters.error("rebuild", error)
            return False
        finally:
            remove(fresh)
            remove(fresh + "-journal")
            self._rebuilding.discard(lock)
            files.close_quietly(lock)

    def _rebuild_lock(self) -> int:
        """The descriptor of the lock, ours. Raises BlockingIOError while another holds it, and OSError."""
        fd = files.open(f"{self.store.root}/rebuild", files.UPDATE, files.PRIVATE_FILE)
        try:
            files.flock(fd, files.LOCK_EX | files.LOCK_NB)
        except BaseException:
            files.close_quietly(fd)
            raise
        return fd

    def _rebuilt_by_another(self, wait: float) -> bool:
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            time.sleep(_REBUILD_PAUSE)
            try:
                files.close_quietly(self._rebuild_lock())
            except BlockingIOError:
                continue
            except OSError as error:
                self.counters.error("rebuild", error)
                return False
            return True
        return False

    def _begin_rebuild(self) -> int | None:
        """The generation that a walk from now on completes; None when it is not our turn.

        Records behind a damaged one would be lost to the new index, with entries that
        nobody accounts for: a ledger that does not read to its end starts over.
        """
        if not self.store.acquire():
            return None
        try:
            for _ in self.ledger.records():
                pass
            if self.ledger.unknown:
                self.ledger.start_over()
            return self.ledger.generation
        finally:
            self.ledger.release()

    def _rebuild_from(self, generation: int, fresh: str) -> bool:
        index = Index(fresh, create=True)
        try:
            self._index_files(index)
            if not self.store.acquire():
                return False
            try:
                if self.ledger.generation != generation:
                    return True  # cleared, and an index begun anew, while we walked
                index.begin()
                # What was recorded while we walked, in order, on top of what we saw.
                index.apply(self.ledger.records(), index.inflation, self._as_it_is)
                index.generation = generation
                entries, total = index.totals()
                index.commit()
                index.close()
                self._forget_index()
                remove(self._path + "-journal")
                files.rename(fresh, self._path)
                self.ledger.recount(entries, total)
                self.ledger.taken()
            finally:
                self.ledger.release()
        finally:
            index.close()
        self.counters.add("index_rebuilt")
        return True

    def _index_files(self, index: Index) -> None:
        index.begin()
        for address, file in files.walk(self.store.blobs.root, 2, strict=True):
            name, size = digest_named(address), _size(file)
            if name is not None and size is not None:
                index.add_blob(name, size)
        for digest, file in files.walk(f"{self.store.root}/entries", 1, strict=True):
            put = self.describe(digest, file)
            if put is not None:
                index.apply([put], 0.0)
        index.commit()

    def describe(self, digest: str, path: str) -> Put | None:
        """What the index should know of a file, from its description alone; None for what is no entry of ours.

        Artifacts are not read: damage to them is found by whoever does. The size of a
        damaged entry counts whatever it holds. OSError passes through: an entry that
        cannot be read now would lose its blobs if it were taken for one without.
        """
        name = digest_named(digest)
        size = _size(path) if name is not None else None
        if name is None or size is None:
            return None
        try:
            found, used = self._summary(path)
            kind, called = str(found.described("kind")), str(found.described("name"))
        except FileNotFoundError:
            return None
        except DamagedError:
            return Put(name, size, 0, 0, 0.0, "", "", [])
        except OSError as error:
            if error.errno in _NO_FILE:
                return Put(name, size, 0, 0, 0.0, "", "", [])
            raise
        blobs = [(bytes.fromhex(address), self._blob_size(address)) for address, _ in found.blobs.values()]
        # A file that was never read has the kernel's time, which ticks in milliseconds; when it was made is exact.
        used = max(used, found.created)
        return Put(name, size, used, found.created, found.cost, kind, called, blobs)

    def _as_it_is(self, put: Put) -> Put:
        """What a record speaks of, as its file has it; the record itself where there is none."""
        digest = put.digest.hex()
        return self.describe(digest, self.store.path(digest)) or put

    def fields(self, digest: str) -> dict[str, bytes] | None:
        """The fields of an entry's key; None when they cannot be had."""
        try:
            found, _ = self._summary(self.store.path(digest))
            return dict(found.described("fields"))
        except (DamagedError, OSError):
            return None

    @staticmethod
    def _summary(path: str) -> tuple[Summary, int]:
        """What a file says of itself, and when it was last used."""
        fd = files.open(path, files.READ)
        try:
            return Summary(fd), files.fstat(fd).st_mtime_ns
        finally:
            files.close_quietly(fd)

    def _blob_size(self, address: str) -> int:
        return _size(self.store.blobs.path(address)) or 0

    def _evict_by_walking(self, need: int) -> bool:
        """Without sqlite3: count everything and, above the low watermark, drop the least recently used.

        Slow on large stores, but the cap holds and the store serves.
        """
        if not self.store.acquire():
            return False
        try:
            puts = [self.describe(*found) for found in files.walk(f"{self.store.root}/entries", 1, strict=True)]
            entries = sorted((put for put in puts if put is not None), key=lambda put: put.used)
            blobs = {
                name: _size(path) or 0
                for address, path in files.walk(self.store.blobs.root, 2, strict=True)
                if (name := digest_named(address)) is not None
            }
            users = dict.fromkeys(blobs, 0)
            for put in entries:
                for blob in {address for address, _ in put.blobs if address in blobs}:
                    users[blob] += 1
            held, total = len(entries), sum(put.size for put in entries) + sum(blobs.values())
            floor, pinned = self._floor(need), pins.pinned(self.store)
            for blob, size in blobs.items():
                if not users[blob] and self._unlink_blob(blob) is not False:
                    total -= size
            for put in entries:
                if total - held * self.store.allowance <= floor:
                    break
                if put.digest in pinned or self._unlink(put.digest) is False:
                    continue
                held, total = held - 1, total - put.size
                self.counters.add("evicted")
                for blob in {address for address, _ in put.blobs if address in blobs}:
                    users[blob] -= 1
                    if not users[blob] and self._unlink_blob(blob) is not False:
                        total -= blobs[blob]
            self.drop_index()
            self.ledger.restart(held, total)
        except OSError as error:
            self.counters.error("rebuild", error)
            return False
        finally:
            self.ledger.release()
        return True

    def count(self) -> tuple[int, int]:
        """(entries, bytes) by walking, for a store that cannot be written."""
        try:
            sizes = [_size(path) or 0 for _, path in files.walk(f"{self.store.root}/entries", 1)]
            blobs = sum(_size(path) or 0 for _, path in files.walk(self.store.blobs.root, 2))
        except OSError as error:
            self.counters.error("count", error)
            return 0, 0
        return len(sizes), sum(sizes) + blobs

    def close(self) -> None:
        self._forget_index()

    def after_fork(self) -> None:
        for lock in self._rebuilding:
            files.close_quietly(lock)  # or it would stay locked as long as this child lives
        self._rebuilding = set()
        if self._index is not None:
            _inherited.append(self._index)
        self._index, self._identity = None, (0, 0)


def _pretend(_name: bytes) -> bool:
    return True


def _identity(path: str) -> tuple[int, int]:
    info = files.stat(path)
    return info.st_dev, info.st_ino


def _size(path: str) -> int | None:
    """None when there is no such file. OSError passes through: what cannot be counted must not count as nothing."""
    try:
        return files.stat(path, follow_symlinks=False).st_size
    except FileNotFoundError:
        return None
