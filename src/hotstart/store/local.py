"""``LocalStore``: the entries on this machine's disk.

    format        "hotstart store 1"
    entries/ab/…  one file per entry, named by the digest of its key
    blobs/ab/cd/… large artifacts, named by their content
    ledger        totals, recent changes, and the lock for changing names
    index.sqlite  derived; deleted without loss
    pins/         one empty file per pinned entry
    tmp/, quarantine/, flights/

Reading takes no lock. Every change of a name (put, delete, evict, quarantine)
happens under the ledger's lock, held for microseconds. No method raises for what
the disk does: errors are counted, reads become misses, writes are dropped.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from errno import ENOMEM
from time import time_ns

from ..errors import StoreError, UsageError
from ..log import say
from . import files, ledger
from .content import ContentStore, Staged, move_aside, remove
from .entry import DamagedError, Draft, Entry, OtherVersionError, attach, read_entry
from .eviction import POLICIES
from .gc import sweep_temporary
from .ledger import Ledger, pack_put
from .naming import Ready, name_entry, name_together
from .sizes import parse_size
from .upkeep import Upkeep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Sequence

    from .counters import Counters

STORE_VERSION = 1

_RETRIES = 3


class LocalStore:
    """One directory of entries, shared by any number of processes.

    Raises StoreError if ``path`` is a file, UnsafeStoreError if others could write
    there. A directory that cannot be made or written is opened all the same: what
    can be read is served, writes are dropped, the reason is said once and counted.
    """

    def __init__(
        self,
        path: str,
        counters: Counters,
        *,
        max_size: int | str = "10GiB",
        policy: str = "cost",
        ttl: float | None = None,
        read_only: bool = False,
        durable: bool = False,
        tier: str = "disk",
    ) -> None:
        if policy not in POLICIES:
            raise UsageError(f"policy is one of {', '.join(map(repr, POLICIES))}, not {policy!r}")
        if ttl is not None and not ttl > 0:
            raise UsageError(f"ttl is a positive number of seconds or None, not {ttl!r}")
        self.max_size = parse_size(max_size, "max_size")
        self.policy = policy
        self.ttl_ns = int(ttl * 1e9) if ttl is not None else 0
        self.durable = durable
        self.tier = tier
        #: What of each entry's file does not count against the cap, for those whose cap is of payload.
        self.allowance = 0
        self.counters = counters
        self.root = os.path.abspath(path)
        #: Why nothing can be read or written here, if so.
        self.unreadable = ""
        self.unwritable = "opened read-only" if read_only else ""
        self._open(read_only)
        self._entries = f"{self.root}/entries/"
        self._temporary = f"{self.root}/tmp/"
        self._touching = not self.unwritable
        self.ledger = Ledger(f"{self.root}/ledger")
        self.blobs = ContentStore.inside(
            f"{self.root}/blobs", f"{self.root}/tmp", f"{self.root}/quarantine", durable=durable
        )
        #: Entries served and the seconds of compiling that saved; beside the counters, for speed.
        self.hits = 0
        self.saved = 0.0
        self._hit_lock: LockType = allocate_lock()
        #: Bytes put; changed under the ledger's lock alone.
        self.written = 0
        self.upkeep = Upkeep(self)
        self._swept = False

    # -- opening ---------------------------------------------------------------

    def _open(self, read_only: bool) -> None:
        try:
            self.root = files.private_directory(self.root, writable=not read_only)
        except StoreError:
            raise
        except OSError as error:
            self._out_of_use(error)
            return
        try:
            fd = files.open(f"{self.root}/format", files.READ)
            try:
                text = files.read(fd, 64).decode("ascii", "replace")
            finally:
                files.close(fd)
        except FileNotFoundError:
            text = ""
        except OSError as error:
            self._out_of_use(error)
            return
        version = text.removeprefix("hotstart store ").strip()
        if version.isdigit() and int(version) > STORE_VERSION:
            self.unreadable = self.unwritable = f"written by a newer hotstart (store version {version})"
            say("warning", f"{self.root} was {self.unreadable}; left untouched, not used", once=f"newer {self.root}")
        elif version != str(STORE_VERSION) and not self.unwritable:
            try:
                self._write_format()
            except OSError as error:
                self.counters.error("open", error)
                self.unwritable = error.strerror or str(error)
                say("warning", f"{self.root} cannot be written: {self.unwritable}", once=f"unwritable {self.root}")

    def _out_of_use(self, error: OSError) -> None:
        self.counters.error("open", error)
        self.unreadable = self.unwritable = error.strerror or str(error)
        say("warning", f"{self.root} cannot be used: {self.unreadable}", once=f"unusable {self.root}")

    def _write_format(self) -> None:
        for name in ("entries", "blobs", "tmp", "flights"):
            files.makedirs(f"{self.root}/{name}")
        text = b"hotstart store %d\n" % STORE_VERSION
        path = f"{self.root}/tmp/{files.unique_name()}"
        fd = files.open(path, files.CREATE, files.PRIVATE_FILE)
        try:
            try:
                files.write_all(fd, [text], len(text))
            finally:
                files.close(fd)
            files.rename(path, f"{self.root}/format")
        except BaseException:
            remove(path)
            raise

    def path(self, digest: str) -> str:
        return f"{self._entries}{digest[:2]}/{digest[2:]}"

    # -- reading ---------------------------------------------------------------

    def read(self, digest: str, again: int = _RETRIES) -> Entry | None:
        """The entry, whole and checked, or None. Never raises.

        The hot path: helpers are spelled out here where a call would cost more than its work.
        """
        if self.unreadable:
            return None
        try:
            fd = files.open(f"{self._entries}{digest[:2]}/{digest[2:]}", files.READ)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.counters.error("read", error)
            return None
        try:
            try:
                entry, blobs = read_entry(fd, digest, self.tier)
                if blobs:
                    self._attach_blobs(entry, blobs)
                if self._touching:
                    # With explicit nanoseconds: the kernel's own "now" ticks in milliseconds, and
                    # entries read within one tick would have no order.
                    now = time_ns()
                    try:
                        files.utime(fd, ns=(now, now))
                    except OSError as error:  # read-only since we opened it: the entry is good all the same
                        self.counters.error("touch", error)
            except DamagedError as error:
                # While the descriptor is open no other file can have its identity.
                identity = files.fstat(fd)
                if self.holds(digest, identity):
                    self.found_damaged(digest, identity, str(error))
                    return None
                # Evicted or replaced while we read it, and its blobs with it: what is there now counts.
                entry = None
            finally:
                files.close(fd)
        except OtherVersionError:
            self.counters.add("other_version")
            return None
        except (OSError, MemoryError) as error:
            self.counters.error("read", error if isinstance(error, OSError) else OSError(ENOMEM, "no memory"))
            return None
        if entry is None:
            return self.read(digest, again - 1) if again else None
        if self.ttl_ns and time_ns() - entry.created > self.ttl_ns:
            self.counters.add("expired")
            return None
        with self._hit_lock:
            self.hits += 1
            self.saved += entry.cost
        return entry

    def holds(self, digest: str, identity: os.stat_result) -> bool:
        """Whether the entry's name still means this very file."""
        try:
            info = files.stat(self.path(digest), follow_symlinks=False)
        except OSError:
            return False
        return (info.st_dev, info.st_ino) == (identity.st_dev, identity.st_ino)

    def _attach_blobs(self, entry: Entry, blobs: dict[str, tuple[str, int]]) -> None:
        """Raises DamagedError when one is missing or damaged: then the entry is. OSError passes through."""
        contents = {}
        for name, (address, size) in blobs.items():
            content, damaged = self.blobs.fetch(address)
            if content is None or len(content) != size:
                if damaged is not None:
                    self.set_aside_blob(address, damaged)
                raise DamagedError(f"its artifact {name!r} is missing or damaged")
            contents[name] = content
        attach(entry, contents)

    def touch(self, digest: str, used: int) -> None:
        """A use in memory, told later."""
        if self._touching:
            try:
                files.utime(self.path(digest), ns=(used, used))
            except FileNotFoundError:
                pass  # evicted by another process while memory still served it
            except OSError as error:
                self.counters.error("touch", error)

    def totals(self) -> tuple[int, int]:
        """(entries, bytes) on disk; counted first when nobody knows."""
        if self.unreadable:
            return 0, 0
        known = self.ledger.peek()
        if known is None and self.upkeep.is_empty():
            return 0, 0
        if known is None:
            if self.unwritable or not self.upkeep.rebuild():
                return self.upkeep.count()
            known = self.ledger.peek()
        return known or (0, 0)

    def contains(self, digest: str) -> bool:
        return not self.unreadable and files.access(self.path(digest), os.F_OK)

    # -- writing ---------------------------------------------------------------

    def write(self, draft: Draft) -> bool:
        """Store an entry; whether it did. True means: under its name, whole, readable from now on."""
        if not self._may_write():
            return False
        staged: list[Staged] = []
        temporary = None
        try:
            addresses = {}
            if draft.large:
                if sum(map(len, draft.artifacts.values())) > self.max_size:
                    self.counters.add("refused.oversize")
                    return False
                for name in draft.large:
                    staged.append(self.blobs.stage(draft.artifacts[name]))
                    addresses[name] = staged[-1].address
            pieces, size = draft.pieces(addresses)
            whole = size + sum({blob.address: blob.size for blob in staged}.values()) if staged else size
            if whole - self.allowance > self.max_size:
                self.counters.add("refused.oversize")
                return False
            temporary = self._write_temporary(pieces, size)
            stored = name_entry(self, draft, _record(draft, size, staged), size, temporary, staged)
            if stored:
                temporary = None
            return stored
        except OSError as error:
            self.counters.error("write", error)
            return False
        finally:
            if temporary is not None:
                remove(temporary)
            for blob in staged:
                remove(blob.temporary)

    def write_many(self, drafts: Sequence[Draft]) -> list[bool]:
        """As ``write`` of each, in one turn of the lock where that is enough: for whoever brings many at once.

        Keep it to some tens: others wait for the turn.
        """
        if not self._may_write():
            return [False] * len(drafts)
        ready = self._write_ahead(drafts)
        named = name_together(self, list(ready.values()))
        done = []
        for draft in drafts:
            item = ready.pop(draft.digest, None)
            if named is not None and draft.digest in named:
                done.append(True)
            elif item is None:
                done.append(self.write(draft))
            elif named is None:
                remove(item.temporary)  # no turn to be had: dropped, as ``write`` would
                done.append(False)
            else:
                done.append(self._name_alone(item))
        return done

    def _write_ahead(self, drafts: Sequence[Draft]) -> dict[str, Ready]:
        """The files of these, by digest, under temporary names; without those that have blobs, or that do not fit."""
        ready: dict[str, Ready] = {}
        try:
            for draft in drafts:
                pieces, size = draft.pieces({}) if not draft.large else ([], 0)
                if draft.digest not in ready and not draft.large and size - self.allowance <= self.max_size:
                    temporary = self._write_temporary(pieces, size)
                    ready[draft.digest] = Ready(draft, _record(draft, size, []), size, temporary)
        except OSError:
            pass  # the rest is tried by itself, and the error counted then
        return ready

    def _name_alone(self, item: Ready) -> bool:
        stored = False
        try:
            stored = name_entry(self, item.draft, item.record, item.size, item.temporary, [])
        except OSError as error:
            self.counters.error("write", error)
        finally:
            if not stored:
                remove(item.temporary)
        return stored

    def _may_write(self) -> bool:
        if self.unwritable:
            self.counters.add("refused.unwritable")
            return False
        if not self._swept:
            self._swept = True
            sweep_temporary(self)
        return True

    def _write_temporary(self, pieces: list[bytes], size: int) -> str:
        path = self._temporary + files.unique_name()
        try:
            fd = files.open(path, files.CREATE, files.PRIVATE_FILE)
        except FileNotFoundError:  # somebody removed the store under us: make it anew
            self._write_format()
            fd = files.open(path, files.CREATE, files.PRIVATE_FILE)
        try:
            try:
                files.write_all(fd, pieces, size)
                if self.durable:
                    files.fsync(fd)
            finally:
                files.close(fd)
        except BaseException:
            remove(path)
            raise
        return path

    # -- removing --------------------------------------------------------------

    def delete(self, digest: str) -> bool:
        """Whether it was there and is gone."""
        if self.unwritable or not self.contains(digest) or not self.acquire():
            return False
        gone = False
        try:
            path = self.path(digest)
            size = files.stat(path, follow_symlinks=False).st_size
            files.unlink(path)
            gone = True
            self._strike(digest, size)
        except FileNotFoundError:
            pass  # another process was faster
        except OSError as error:
            self.counters.error("delete", error)
        finally:
            self.ledger.release()
        return gone

    def _strike(self, digest: str, size: int) -> None:
        """An entry's file is gone: say so in the ledger, whose lock is held."""
        self.ledger.forget(bytes.fromhex(digest))
        self.ledger.entries -= 1
        self.ledger.bytes -= size
        self.ledger.save()

    def found_damaged(self, digest: str, identity: os.stat_result, reason: str) -> None:
        """Count it, and move the file aside so that the next put heals it."""
        self.counters.add("corrupt")
        say("warning", f"entry {digest[:12]}… is damaged ({reason}); moved to quarantine", once="damaged")
        if self.unwritable or not self.acquire():
            return
        try:
            if move_aside(self.path(digest), f"{self.root}/quarantine", identity):
                self._strike(digest, identity.st_size)
        except OSError as error:
            self.counters.error("quarantine", error)
        finally:
            self.ledger.release()

    def set_aside_blob(self, address: str, identity: os.stat_result) -> None:
        """Move a damaged blob to quarantine; the entries that refer to it are damaged then."""
        if self.unwritable or not self.acquire():
            return
        try:
            if move_aside(self.blobs.path(address), f"{self.root}/quarantine", identity):
                self.ledger.bytes -= identity.st_size
                self.ledger.save()
        except OSError as error:
            self.counters.error("quarantine", error)
        finally:
            self.ledger.release()

    # -- turns and ends --------------------------------------------------------

    def acquire(self) -> bool:
        """Take the lock for changing names; False, and counted, when it is not to be had in time."""
        try:
            if self.ledger.acquire(ledger.LOCK_WAIT):
                return True
            self.counters.add("refused.locked")
        except OSError as error:
            self.counters.error("lock", error)
        return False

    def close(self) -> None:
        self.upkeep.close()
        try:
            self.ledger.close()
        except OSError as error:
            self.counters.error("close", error)

    def after_fork(self) -> None:
        self.hits, self.saved, self.written, self._hit_lock = 0, 0.0, 0, allocate_lock()
        self.ledger.after_fork()
        self.upkeep.after_fork()


def _record(draft: Draft, size: int, staged: list[Staged]) -> bytes:
    """What the ledger keeps of an entry whose file, of ``size`` bytes, has just been written."""
    return pack_put(
        bytes.fromhex(draft.digest),
        size,
        # After writing, so that the time the kernel gave the file is not later: that would look like a use.
        time_ns(),
        draft.created,
        draft.cost,
        draft.kind,
        draft.name,
        [(bytes.fromhex(blob.address), blob.size) for blob in staged],
    )
