"""Upkeep: the index kept up, room made, the store counted anew after a crash.

Everything here is off the path of a hit. ``admit`` and ``with_index`` run with
the ledger's lock held; ``rebuild`` takes it itself, for a short turn at the end,
so that other processes go on meanwhile.
"""

from __future__ import annotations

from ..log import say
from . import files
from .content import remove
from .entry import DamagedError, Summary
from .eviction import LOW_WATERMARK, Evicted, Room
from .index import Index, IndexGoneError
from .ledger import FIRST_GENERATION, LONG, Put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .local import LocalStore

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
        #: Called before anything is chosen for eviction, so that uses in memory count.
        self.before_eviction: Callable[[], None] = lambda: None

    # -- admission, under the lock ---------------------------------------------

    def admit(self, need: int) -> bool | None:
        """Room for ``need`` more bytes, evicting if it must. None: the store has to be counted first."""
        ledger, cap = self.ledger, self.store.max_size
        if ledger.unknown and self._is_empty():
            ledger.begin()
        fits = self._held() + need <= cap and not ledger.unknown
        if fits and ledger.tail < LONG:
            return True
        if not fits:
            self.before_eviction()
        try:
            self.with_index(lambda room: room.make(cap - need, self._floor(need)))
        except IndexGoneError as error:
            say("info", f"{self._path}: {error}; it will be rebuilt")
            return True if fits else None
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
        try:
            index.begin()
            interrupted = index.generation == ledger.generation
            index.apply(ledger.records(), index.inflation)
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
            self.pinned(),
            self._last_use,
            unlink,
            unlink_blob,
            self.store.allowance,
        )

    def _last_use(self, digest: bytes) -> int | None:
        try:
            return files.stat(self.store.path(digest.hex())).st_mtime_ns
        except OSError:
            return None

    def _unlink(self, digest: bytes) -> bool:
        return self._gone(self.store.path(digest.hex()))

    def _unlink_blob(self, address: bytes) -> bool:
        return self._gone(self.store.blobs.path(address.hex()))

    def _gone(self, path: str) -> bool:
        try:
            files.unlink(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            self.counters.error("evict", error)
            return False
        return True

    def _is_empty(self) -> bool:
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

    def rebuild(self, need: int = 0) -> bool:
        """Walk the files, count them and make a new index; others read and write meanwhile.

        Where there can be no index, make room for ``need`` bytes while we are at it.
        False when another process is at it, or when it cannot be done here.
        """
        lock = self._rebuild_lock()
        if lock < 0:
            return False
        fresh = f"{self.store.root}/tmp/{files.unique_name()}"
        try:
            index = self._index_from_files(fresh)
            if not self.store.acquire():
                index.close()
                return False
            try:
                index.begin()
                # What was recorded while we walked, in order, on top of what we saw.
                index.apply(self.ledger.records(), index.inflation)
                index.generation = self.ledger.generation
                index.commit()
                index.close()
                self._forget_index()
                remove(self._path + "-journal")
                files.rename(fresh, self._path)
                index = self._open_index()
                entries, total = index.totals()
                self.ledger.recount(entries, total)
                self.ledger.taken()
            finally:
                self.ledger.release()
        except IndexGoneError as error:
            say("warning", f"{self.store.root}: no index: {error}", once="no index")
            return self._evict_by_walking(need)
        except OSError as error:
            self.counters.error("rebuild", error)
            return False
        finally:
            remove(fresh)
            files.close(lock)
        self.counters.add("index_rebuilt")
        return True

    def _rebuild_lock(self) -> int:
        try:
            fd = files.open(f"{self.store.root}/rebuild", files.UPDATE, files.PRIVATE_FILE)
        except OSError as error:
            self.counters.error("rebuild", error)
            return -1
        try:
            files.flock(fd, files.LOCK_EX | files.LOCK_NB)
        except OSError:
            files.close(fd)
            return -1
        return fd

    def _index_from_files(self, path: str) -> Index:
        index = Index(path, create=True)
        index.begin()
        for address, file in files.walk(self.store.blobs.root, 2):
            size = _size(file)
            if len(address) == 64 and size is not None:
                index.add_blob(bytes.fromhex(address), size)
        for digest, file in files.walk(f"{self.store.root}/entries", 1):
            put = self.describe(digest, file)
            if put is not None:
                index.apply([put], 0.0)
        index.commit()
        return index

    def describe(self, digest: str, path: str) -> Put | None:
        """What the index should know of a file, from its description alone; None for what is no entry of ours.

        Not checked: a damaged entry is found when it is read. Its size counts whatever it holds.
        """
        size = _size(path)
        if size is None or len(digest) != 64:
            return None
        try:
            found, used = self._summary(path)
            kind, name = str(found.described("kind")), str(found.described("name"))
        except (DamagedError, OSError):
            return Put(bytes.fromhex(digest), size, 0, 0, 0.0, "", "", [])
        blobs = [(bytes.fromhex(address), self._blob_size(address)) for address, _ in found.blobs.values()]
        return Put(bytes.fromhex(digest), size, used, found.created, found.cost, kind, name, blobs)

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
            files.close(fd)

    def _blob_size(self, address: str) -> int:
        return _size(self.store.blobs.path(address)) or 0

    def _evict_by_walking(self, need: int) -> bool:
        """Without sqlite3: count everything and, above the low watermark, drop the least recently used.

        Slow on large stores, but the cap holds and the store serves.
        """
        if not self.store.acquire():
            return False
        try:
            found = []
            kept: set[str] = set()
            total = 0
            for digest, path in files.walk(f"{self.store.root}/entries", 1):
                put = self.describe(digest, path)
                if put is not None:
                    total += put.size
                    found.append((put.used, path, put))
            blobs = {address: _size(path) or 0 for address, path in files.walk(self.store.blobs.root, 2)}
            total += sum(blobs.values())
            found.sort(key=lambda item: item[0])
            floor = self._floor(need)
            pinned = self.pinned()
            entries = len(found)
            for _, path, put in found:
                if total - entries * self.store.allowance > floor and put.digest not in pinned and self._gone(path):
                    total -= put.size
                    entries -= 1
                    self.counters.add("evicted")
                else:
                    kept.update(address.hex() for address, _ in put.blobs)
            for address, size in blobs.items():
                if address not in kept and self._unlink_blob(bytes.fromhex(address)):
                    total -= size
            self.ledger.generation += 1
            self.ledger.tail = 64
            self.ledger.recount(entries, total)
        except OSError as error:
            self.counters.error("rebuild", error)
            return False
        finally:
            self.ledger.release()
        return True

    def count(self) -> tuple[int, int]:
        """(entries, bytes) by walking, for a store that cannot be written."""
        sizes = [_size(path) or 0 for _, path in files.walk(f"{self.store.root}/entries", 1)]
        blobs = sum(_size(path) or 0 for _, path in files.walk(self.store.blobs.root, 2))
        return len(sizes), sum(sizes) + blobs

    # -- pins ------------------------------------------------------------------

    def pin(self, digest: str) -> bool:
        directory = f"{self.store.root}/pins"
        try:
            files.makedirs(directory)
            files.close(files.open(f"{directory}/{digest}", files.UPDATE, files.PRIVATE_FILE))
        except OSError as error:
            self.counters.error("pin", error)
            return False
        return True

    def unpin(self, digest: str) -> bool:
        try:
            files.unlink(f"{self.store.root}/pins/{digest}")
        except OSError:
            return False
        return True

    def pinned(self) -> set[bytes]:
        try:
            names = files.listdir(f"{self.store.root}/pins")
        except OSError:
            return set()
        return {bytes.fromhex(name) for name in names if len(name) == 64}

    def close(self) -> None:
        self._forget_index()

    def after_fork(self) -> None:
        if self._index is not None:
            _inherited.append(self._index)
        self._index, self._identity = None, (0, 0)


def _pretend(_name: bytes) -> bool:
    return True


def _identity(path: str) -> tuple[int, int]:
    info = files.stat(path)
    return info.st_dev, info.st_ino


def _size(path: str) -> int | None:
    try:
        return files.stat(path, follow_symlinks=False).st_size
    except OSError:
        return None
