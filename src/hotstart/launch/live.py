"""Which runs are alive: each holds a lock on a file of its own, which the kernel frees when it dies.

    HOME/launch/live/ID   empty; its time is when the run began
    HOME/launch/lock      held while directories and notes are changed

What a live run has read or written is not evicted under it.
"""

from __future__ import annotations

import os
import time

try:
    import fcntl
except ImportError:  # no flock: runs are then not kept apart
    fcntl = None  # type: ignore[assignment]

TYPE_CHECKING = False

_CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

#: Whoever waits for the lock looks this often, in seconds.
_PAUSE = 0.01


def begin(home: str, name: str) -> int:
    """A descriptor that says this run lives, until ``end``; -1 when that cannot be said here."""
    place = f"{home}/launch/live"
    try:
        try:
            fd = os.open(f"{place}/{name}", _CREATE, 0o600)
        except FileNotFoundError:
            from ..store.files import makedirs

            makedirs(place)
            fd = os.open(f"{place}/{name}", _CREATE, 0o600)
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return -1
    return fd


def end(home: str, name: str, fd: int) -> None:
    if fd >= 0:
        try:
            os.unlink(f"{home}/launch/live/{name}")
        except OSError:
            pass  # swept by another, or the home is gone
        os.close(fd)


def others(home: str, name: str) -> list[int]:
    """When each other live run began, in nanoseconds; files of dead ones are removed."""
    place = f"{home}/launch/live"
    found = []
    try:
        with os.scandir(place) as items:
            names = [item.name for item in items]
    except OSError:
        return []
    for other in names:
        if other == name:
            continue
        path = f"{place}/{other}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            began = os.fstat(fd).st_mtime_ns
            if fcntl is None:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(began)
                continue
            # Dead, unless it has made its file and not locked it yet.
            if time.time_ns() - began > 10**9:
                os.unlink(path)
        except OSError:
            continue
        finally:
            os.close(fd)
    return found


class Turn:
    """The one turn to change directories and notes: ``with Turn(home, wait) as mine`` says whether it is ours."""

    def __init__(self, home: str, wait: float) -> None:
        self._path = f"{home}/launch/lock"
        self._wait = wait
        self._fd = -1

    def __enter__(self) -> bool:
        deadline = time.monotonic() + self._wait
        try:
            from ..store.files import makedirs

            makedirs(os.path.dirname(self._path))
            self._fd = os.open(self._path, _CREATE, 0o600)
        except OSError:
            return False
        while fcntl is not None:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_PAUSE)
            except OSError:
                return False
        return True

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
