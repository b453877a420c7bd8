"""The ledger: how much the store holds, and what changed since the index last looked.

One small file beside the entries, and the lock under which every change to the
names in the store happens. Readers never take it. The file is

    head     magic "hotL", u16 version, u16 flags, u64 generation, i64 bytes,
             i64 entries, u64 tail, u64 check
    record*  from byte 64 up to ``tail``: u32 length, u64 check, body

A put costs a few small writes here instead of an SQL transaction; the index takes
the records in batches. Records are written before the file they speak of gets its
name, and the head after the records, so a process killed at any point leaves a
record too many (an entry that is not there, found and dropped by eviction) and
never an entry that no one accounts for. ``bytes`` is therefore never too low.

If the ledger is lost or damaged it starts again as *unknown*, and the walk that
rebuilds the index counts anew.
"""

from __future__ import annotations

import struct
import time
from _thread import allocate_lock, get_ident

from xxhash import xxh3_64_intdigest

from . import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Iterator

_HEAD = struct.Struct("<4sHHQqqQ")
_HEAD_CHECK = struct.Struct("<Q")
_HEAD_SIZE = _HEAD.size + _HEAD_CHECK.size
_MAGIC, _VERSION = b"hotL", 1
_FIRST = 64

_RECORD = struct.Struct("<IQ")
_PUT = struct.Struct("<B32sQQQdHHI")
_BLOB = struct.Struct("<32sQ")
_DELETE = struct.Struct("<B32s")
PUT, DELETE = 1, 2

#: Flag: the totals are not known, a walk has to count.
_UNKNOWN = 1

#: How long a write waits for its turn before it is dropped. The holder needs
#: milliseconds; one that takes longer is stopped or swapped out.
LOCK_WAIT = 2.0

#: Past this length the index takes the records in, even when nothing has to be evicted.
LONG = 256 * 1024

#: So long, in seconds, a fork or a close waits for the turn of another thread to end.
_END_WAIT = 1.0

#: A head read without the lock can be half of an old and half of a new one: look again, this often.
_PEEKS = 4

#: The generation of a store that no index has taken anything in from.
FIRST_GENERATION = 1


class Put:
    """One entry that was put: what the index needs to know of it."""

    __slots__ = ("blobs", "cost", "created", "digest", "kind", "name", "size", "used")

    def __init__(
        self,
        digest: bytes,
        size: int,
        used: int,
        created: int,
        cost: float,
        kind: str,
        name: str,
        blobs: list[tuple[bytes, int]],
    ) -> None:
        self.digest = digest
        self.size = size
        self.used = used
        self.created = created
        self.cost = cost
        self.kind = kind
        self.name = name
        #: (address, size on disk) of each blob it refers to.
        self.blobs = blobs

    @classmethod
    def unpack(cls, body: bytes) -> Put:
        _, digest, size, used, created, cost, kind_length, name_length, count = _PUT.unpack_from(body)
        at = _PUT.size
        kind = str(body[at : at + kind_length], "utf-8", "replace")
        at += kind_length
        name = str(body[at : at + name_length], "utf-8", "replace")
        at += name_length
        blobs = [_BLOB.unpack_from(body, at + i * _BLOB.size) for i in range(count)]
        return cls(digest, size, used, created, cost, kind, name, blobs)


def pack_put(
    digest: bytes,
    size: int,
    used: int,
    created: int,
    cost: float,
    kind: str,
    name: str,
    blobs: list[tuple[bytes, int]],
) -> bytes:
    """What ``Put.unpack`` takes apart; the parameters are its fields."""
    raw_kind = kind.encode("utf-8", "surrogatepass")[:0xFFFF]
    raw_name = name.encode("utf-8", "surrogatepass")[:0xFFFF]
    fixed = _PUT.pack(PUT, digest, size, used, created, cost, len(raw_kind), len(raw_name), len(blobs))
    if not blobs:
        return fixed + raw_kind + raw_name
    return b"".join((fixed, raw_kind, raw_name, *(_BLOB.pack(*blob) for blob in blobs)))


class Ledger:
    """The open ledger of one store in one process.

    Use only between ``acquire`` and ``release``; ``save`` makes changes to
    ``bytes``, ``entries`` and appended records visible. OSError passes through:
    the store turns it into a dropped write.
    """

    __slots__ = (
        "_fd",
        "_known",
        "_mutex",
        "_path",
        "_paused_by",
        "_pending",
        "_raw",
        "bytes",
        "entries",
        "generation",
        "tail",
        "unknown",
    )

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._mutex: LockType = allocate_lock()
        self._paused_by = 0
        self._pending: list[bytes] = []
        self.bytes = self.entries = self.generation = 0
        self.tail = _FIRST
        self.unknown = False
        #: The head as it was last seen on disk, whole and taken apart.
        self._raw = b""
        self._known: tuple[int, int, int, int, int] | None = None

    def acquire(self, wait: float) -> bool:
        """Take the lock, at most ``wait`` seconds; False when somebody keeps it longer.

        Bounded, because the holder may be stopped in a debugger. Polled, because
        flock has no time-out; the holder's turn is microseconds, so the first
        sleeps are short.
        """
        mutex = self._mutex
        if not mutex.acquire(False) and not mutex.acquire(timeout=wait):
            return False
        ready = False
        try:
            if self._lock(wait):
                raw = files.pread(self._fd, _HEAD_SIZE, 0)
                # Usually what we wrote ourselves: then it need not be taken apart again.
                head = self._known if raw == self._raw else _unpack_head(raw)
                if head is None:
                    # New, or damaged: a generation the index has never seen, and totals for a walk to find.
                    head = (_UNKNOWN, time.time_ns(), 0, 0, _FIRST)
                self._raw, self._known = raw, head
                flags, self.generation, self.bytes, self.entries, self.tail = head
                self.unknown = flags & _UNKNOWN != 0
                ready = True
        finally:
            if not ready:
                self.release()
        return ready

    def release(self) -> None:
        """Never fails: whatever the disk does, the next one gets its turn."""
        try:
            if self._pending:
                self._pending.clear()
            if self._fd >= 0:
                try:
                    files.flock(self._fd, files.LOCK_UN)
                except OSError:
                    self._close()  # which unlocks as well
        finally:
            self._mutex.release()

    def peek(self) -> tuple[int, int] | None:
        """(entries, bytes) without the lock, a moment old; None when they are not known."""
        try:
            fd = files.open(self._path, files.READ)
            try:
                for _ in range(_PEEKS):
                    head = _unpack_head(files.pread(fd, _HEAD_SIZE, 0))
                    if head is not None:
                        return (head[3], head[2]) if not head[0] & _UNKNOWN else None
            finally:
                files.close(fd)
        except OSError:
            pass  # as good as unknown
        return None

    def append(self, body: bytes) -> None:
        self._pending.append(body)

    def forget(self, digest: bytes) -> None:
        """Record that the entry is gone."""
        self._pending.append(_DELETE.pack(DELETE, digest))

    def save(self) -> None:
        """Records first, head last: until the head says so, nothing was added."""
        if self._pending:
            data = b""
            for body in self._pending:
                data += _RECORD.pack(len(body), xxh3_64_intdigest(body)) + body
            self._pending.clear()
            self._write(data, self.tail)
            self.tail += len(data)
        self._save_head()

    def records(self) -> Iterator[Put | bytes]:
        """What was recorded since the index last took it in: a ``Put``, or the digest of what is gone.

        Stops at the first record that does not check, and the ledger is *unknown*
        then: after a power cut there may be nothing sensible behind it.
        """
        data = files.read_at(self._fd, self.tail - _FIRST, _FIRST)
        at = 0
        while at + _RECORD.size <= len(data):
            length, check = _RECORD.unpack_from(data, at)
            body = data[at + _RECORD.size : at + _RECORD.size + length]
            if len(body) != length or xxh3_64_intdigest(body) != check:
                self.unknown = True
                return
            at += _RECORD.size + length
            try:
                yield Put.unpack(body) if body[0] == PUT else _DELETE.unpack(body)[1]
            except (struct.error, IndexError):
                self.unknown = True
                return
        if at != self.tail - _FIRST:
            self.unknown = True  # cut short, between two records or inside one

    def taken(self) -> None:
        """The index holds all records and this generation: begin a new one, empty."""
        self.tail = _FIRST
        self.generation += 1
        self._save_head()

    def start_over(self) -> None:
        """Nothing here can be relied on: drop the records, and say so until a walk has counted."""
        self.tail, self.unknown = _FIRST, True
        self._save_head()

    def restart(self, entries: int, total: int) -> None:
        """A walk has counted, and there is no index: whatever was recorded is in the count."""
        self.tail = _FIRST
        self.generation += 1
        self.recount(entries, total)

    def recount(self, entries: int, total: int) -> None:
        """A walk has counted."""
        self.entries, self.bytes, self.unknown = entries, total, False
        self._save_head()

    def begin(self) -> None:
        """The store is empty: everything that will ever be in it will be recorded here first."""
        self.generation, self.tail = FIRST_GENERATION, _FIRST
        self.recount(0, 0)

    def close(self) -> None:
        """Give the file back, once a turn of another thread has ended; one that hangs keeps it."""
        if self._mutex.acquire(timeout=_END_WAIT):
            try:
                self._close()
            finally:
                self._mutex.release()

    def before_fork(self) -> None:
        """Let the turn of another thread end first, if it ends soon.

        A child made in the middle of one has a copy of the index's transaction. When
        that child exits, SQLite rolls the copy back, over what the parent has written since.
        """
        if self._mutex.acquire(timeout=_END_WAIT):
            self._paused_by = get_ident()

    def after_fork_in_parent(self) -> None:
        if self._paused_by == get_ident():
            self._paused_by = 0
            self._mutex.release()

    def after_fork(self) -> None:
        """In a child: drop the descriptor, since flock on it would be the parent's lock.

        Closing releases nothing of the parent's; only an explicit unlock would.
        """
        self._paused_by = 0
        self._mutex = allocate_lock()
        self._pending = []
        self._close()

    def _lock(self, wait: float) -> bool:
        deadline = None
        pause = 50e-6
        while True:
            if self._fd < 0:
                self._fd = files.open(self._path, files.UPDATE, files.PRIVATE_FILE)
            try:
                files.flock(self._fd, files.LOCK_NOW)
            except BlockingIOError:
                now = time.monotonic()
                deadline = deadline or now + wait
                if now >= deadline:
                    return False
                time.sleep(pause)
                pause = min(pause * 1.5, 5e-3)
                continue
            if files.fstat(self._fd).st_nlink:
                return True
            self._close()  # the store was removed under us: lock what is there now

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            files.close_quietly(fd)

    def _save_head(self) -> None:
        known = (_UNKNOWN if self.unknown else 0, self.generation, self.bytes, self.entries, self.tail)
        body = _HEAD.pack(_MAGIC, _VERSION, *known)
        raw = body + xxh3_64_intdigest(body).to_bytes(8, "little")
        self._write(raw, 0)
        self._raw, self._known = raw, known

    def _write(self, data: bytes, at: int) -> None:
        """All of it: a disk that fills up takes a part first, without an error."""
        while (done := files.pwrite(self._fd, data, at)) != len(data):
            data = data[done:]
            at += done


def _unpack_head(head: bytes) -> tuple[int, int, int, int, int] | None:
    """(flags, generation, bytes, entries, tail), or None for what is no sound head."""
    if len(head) != _HEAD_SIZE:
        return None
    body = head[: _HEAD.size]
    magic, version, flags, generation, total, entries, tail = _HEAD.unpack(body)
    (check,) = _HEAD_CHECK.unpack(head[_HEAD.size :])
    if magic != _MAGIC or version != _VERSION or check != xxh3_64_intdigest(body):
        return None
    return flags, generation, total, entries, tail
