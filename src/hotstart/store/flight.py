"""Single flight: who wants a key at the same time as others waits for one of them.

Between threads a flight hands its result over directly. Between processes it is a
locked file; the kernel frees the lock when the holder dies, so another takes over
at once. Three rules keep everyone moving:

- A thread that is compiling one key waits for another key only if that one's
  digest is greater than all it holds. Waits then always point upwards, so no
  circle of waiters can form; where the rule forbids waiting it compiles.
- A thread asking again for the key it is compiling compiles.
- Nobody waits longer than ``wait`` seconds; then it compiles on its own.

A holder that could not store its result, or whose compile failed, leaves a mark in
the lock file. Whoever reads it compiles at once, side by side with the others,
instead of queueing for a result that will not come.
"""

from __future__ import annotations

import os
import threading
import time
from weakref import finalize

from . import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..keys.key import Key
    from .counters import Counters
    from .entry import BytesLike, Entry

    Keep = Callable[[Key, Mapping[str, BytesLike], Mapping[str, object] | None, float], tuple[Entry, bool]]

#: A mark older than this is history: the disk may have room again.
_MARK_AGE = 30.0

_MARK = b"!"

#: Polling for a file lock starts at this interval and slows down to the other.
_FIRST_PAUSE, _LAST_PAUSE = 0.5e-3, 50e-3


class Flight:
    """One compile under way in this process."""

    __slots__ = ("done", "entry", "error")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.entry: Entry | None = None
        self.error: Exception | None = None


class Flights:
    """All flights of one cache in one process."""

    def __init__(self, directory: str | None, counters: Counters) -> None:
        #: Where the lock files of other processes are; None for a cache that is not on disk.
        self.directory = directory
        self._counters = counters
        self._flying: dict[str, Flight] = {}
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._open: set[int] = set()

    def may_wait(self, digest: str) -> bool:
        held = self.held()
        return not held or digest > max(held)

    def held(self) -> list[str]:
        """What this thread is compiling, outermost first."""
        try:
            return self._mine.held  # type: ignore[no-any-return]
        except AttributeError:
            held: list[str] = []
            self._mine.held = held
            return held

    def join(self, digest: str) -> tuple[Flight, bool]:
        """The flight for this key, and whether the caller is the one to compile."""
        with self._lock:
            flight = self._flying.get(digest)
            if flight is not None:
                return flight, False
            flight = self._flying[digest] = Flight()
        return flight, True

    def land(self, digest: str, flight: Flight) -> None:
        """The flight is over: those who joined read its outcome, those who come now start another."""
        with self._lock:
            if self._flying.get(digest) is flight:
                del self._flying[digest]
        flight.done.set()

    def lock(self, digest: str, deadline: float, wait: bool) -> FileLock | None:
        """The lock file of a key, ours; None where compiling without it is right.

        That is: no directory, somebody else's result will not come, the time is up,
        waiting is not allowed here, or the disk does not let us.
        """
        if self.directory is None:
            return None
        path = f"{self.directory}/{digest}"
        pause = _FIRST_PAUSE
        while True:
            try:
                return self._try_lock(path)
            except BlockingIOError:
                if not wait or self._is_marked(path):
                    return None
            except OSError as error:
                self._counters.error("flight", error)
                return None
            if time.monotonic() + pause > deadline:
                self._counters.add("flight.gave_up")
                return None
            time.sleep(pause)
            pause = min(pause * 1.3, _LAST_PAUSE)

    def _try_lock(self, path: str) -> FileLock | None:
        """None when it is marked. Raises BlockingIOError while somebody holds it, and OSError."""
        while True:
            try:
                fd = files.open(path, files.UPDATE, files.PRIVATE_FILE)
            except FileNotFoundError:  # somebody removed the store under us
                files.makedirs(os.path.dirname(path))
                fd = files.open(path, files.UPDATE, files.PRIVATE_FILE)
            lock = None
            try:
                files.flock(fd, files.LOCK_EX | files.LOCK_NB)
                # The last holder unlinks its file; a lock on a nameless file excludes nobody.
                if files.fstat(fd).st_nlink:
                    if not self._is_marked(path):
                        lock = FileLock(self, fd, path)
                        self._open.add(fd)
                    return lock
            finally:
                if lock is None:
                    files.close_quietly(fd)

    @staticmethod
    def _is_marked(path: str) -> bool:
        try:
            info = files.stat(path)
        except OSError:
            return False
        return info.st_size > 0 and time.time() - info.st_mtime < _MARK_AGE

    def closed(self, fd: int) -> None:
        self._open.discard(fd)

    def after_fork(self) -> None:
        """In a child: nobody here is compiling. Closing does not unlock what the parent holds."""
        for fd in self._open:
            try:
                os.close(fd)
            except OSError:
                pass  # closed by somebody else already, and this process is new
        self._open = set()
        self._flying = {}
        self._lock = threading.Lock()
        self._mine = threading.local()


class FileLock:
    """A held lock file. ``release`` with whether the result is in the store."""

    __slots__ = ("_fd", "_flights", "_owner", "_path")

    def __init__(self, flights: Flights, fd: int, path: str) -> None:
        self._flights = flights
        self._fd = fd
        self._path = path
        self._owner = os.getpid()

    def release(self, *, stored: bool) -> None:
        """Unlink while still holding it, so that no waiter can lock a name that is about to go."""
        if self._owner != os.getpid():
            return  # a child's copy: ``after_fork`` closed the descriptor, and its number may mean another file now
        try:
            if stored:
                files.unlink(self._path)
            else:
                files.ftruncate(self._fd, 0)
                files.pwrite(self._fd, _MARK, 0)
        except OSError as error:
            self._flights._counters.error("flight", error)
        finally:
            self._flights.closed(self._fd)
            try:
                files.close(self._fd)
            except OSError as error:
                self._flights._counters.error("flight", error)


class Pending:
    """A compile that was begun and has not ended: ``finish`` it, or ``abandon`` it if it failed.

    One that is dropped without either, because an exception went past, is abandoned
    when the last reference goes, at the latest when the process ends. Ending it a
    second time does nothing. Any thread may end it.
    """

    __slots__ = ("__weakref__", "_end", "_keep", "key", "started")

    def __init__(
        self, key: Key, keep: Keep, flights: Flights, flight: Flight | None = None, lock: FileLock | None = None
    ) -> None:
        self.key = key
        self._keep = keep
        self.started = time.perf_counter()
        held = flights.held()
        if flight is not None:
            held.append(key.digest)
        self._end = finalize(self, _land, flights, key.digest, flight, lock, held)

    def finish(
        self, artifacts: Mapping[str, BytesLike], *, meta: Mapping[str, object] | None = None, cost: float | None = None
    ) -> bool:
        """Store what was compiled; whether it is now in the store. ``cost`` is the time since it was begun.

        Raises as ``Cache.put`` does, for misuse alone, and is abandoned then.
        """
        end = self._end.detach()
        if end is None:
            return False
        entry, stored = None, False
        try:
            spent = time.perf_counter() - self.started if cost is None else cost
            entry, stored = self._keep(self.key, artifacts, meta, spent)
        finally:
            flights, digest, flight, lock, held = end[2]
            _land(flights, digest, flight, lock, held, entry, stored)
        return stored

    def abandon(self) -> None:
        """It failed: nobody need wait for it any longer."""
        self._end()


def begin(
    flights: Flights, key: Key, look: Callable[[str], Entry | None], keep: Keep, deadline: float
) -> Entry | Pending:
    """Join or lead the flight of a key whose compile ends in another call; see ``Cache.begin``."""
    digest = key.digest
    if digest in flights.held():
        return Pending(key, keep, flights)
    flight, leading = flights.join(digest)
    if not leading:
        if flights.may_wait(digest) and flight.done.wait(deadline - time.monotonic()) and flight.entry is not None:
            flights._counters.add("hit.flight")
            flights._counters.add("seconds_saved", flight.entry.cost)
            return flight.entry
        # It failed, or takes too long. Side by side with the others: taking turns would add up their failures.
        return Pending(key, keep, flights)
    lock = None
    try:
        lock = flights.lock(digest, deadline, flights.may_wait(digest))
        entry = look(digest)
    except BaseException:  # Ctrl-C while waiting
        _land(flights, digest, flight, lock, [])
        raise
    if entry is None:
        return Pending(key, keep, flights, flight, lock)
    _land(flights, digest, flight, lock, [], entry, True)
    return entry


def _land(
    flights: Flights,
    digest: str,
    flight: Flight | None,
    lock: FileLock | None,
    held: list[str],
    entry: Entry | None = None,
    stored: bool = False,
) -> None:
    if digest in held:
        held.remove(digest)
    if lock is not None:
        lock.release(stored=stored)
    if flight is not None:
        flight.entry = entry
        flights.land(digest, flight)
