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

from . import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .counters import Counters
    from .entry import Entry

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
        or waiting is not allowed here.
        """
        if self.directory is None:
            return None
        path = f"{self.directory}/{digest}"
        pause = _FIRST_PAUSE
        while True:
            lock = self._try_lock(path)
            if lock is not None or not wait or self._is_marked(path):
                return lock
            if time.monotonic() + pause > deadline:
                self._counters.add("flight.gave_up")
                return None
            time.sleep(pause)
            pause = min(pause * 1.3, _LAST_PAUSE)

    def _try_lock(self, path: str) -> FileLock | None:
        try:
            while True:
                fd = files.open(path, files.UPDATE, files.PRIVATE_FILE)
                try:
                    files.flock(fd, files.LOCK_EX | files.LOCK_NB)
                    # The last holder unlinks its file; a lock on a nameless file excludes nobody.
                    if not files.fstat(fd).st_nlink:
                        files.close(fd)
                        continue
                    if self._is_marked(path):
                        files.close(fd)
                        return None
                except BaseException:
                    files.close(fd)
                    raise
                self._open.add(fd)
                return FileLock(self, fd, path)
        except BlockingIOError:
            return None
        except OSError as error:
            self._counters.error("flight", error)
            return None

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

    __slots__ = ("_fd", "_flights", "_path")

    def __init__(self, flights: Flights, fd: int, path: str) -> None:
        self._flights = flights
        self._fd = fd
        self._path = path

    def release(self, *, stored: bool) -> None:
        """Unlink while still holding it, so that no waiter can lock a name that is about to go."""
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
