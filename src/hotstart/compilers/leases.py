"""Leases: which files the living processes use, so that nobody removes them.

Each process has one file per directory, locked for as long as it lives, with a line
for every file it was given. The kernel frees the lock when the process ends, however
it ends; a lease that can be locked belongs to nobody and is removed. Process ids are
not used: they come again.

A forked child shares its parent's lease: both write into it, and it is held until the
last of them is gone. One that closed all its files (a daemon) opens another.
"""

from __future__ import annotations

import atexit
import os
import time
from _thread import allocate_lock

from ..store import files
from ..store.counters import Counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType

#: Where nothing can be locked a lease counts for this long after its last line.
_UNLOCKED_AGE = 7 * 86400.0

#: From so many leases on, a new one looks for those of the dead first.
_MANY = 64


class Lease:
    """What this process was given of one directory. Made by ``lease_on``; thread-safe."""

    __slots__ = ("_directory", "_fd", "_identity", "_lock", "_path", "names")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = ""
        self._fd = -1
        self._identity = (0, 0)
        self._lock: LockType = allocate_lock()
        self.names: set[str] = set()

    def add(self, name: str) -> None:
        """Let nobody remove ``name`` while this process lives. Raises OSError when that cannot be said."""
        with self._lock:
            if name in self.names:
                return
            if not self._is_open():
                self._open()
            # The first line break ends what a full disk may have left of the name before.
            line = b"\n%b\n" % name.encode()
            files.write_all(self._fd, [line], len(line))
            self.names.add(name)

    def _is_open(self) -> bool:
        """Whether the descriptor is still what it was: a daemon closes all it has, and the number comes again."""
        if self._fd < 0:
            return False
        try:
            info = files.fstat(self._fd)
        except OSError:
            return False
        return (info.st_dev, info.st_ino) == self._identity and info.st_nlink > 0

    def _open(self) -> None:
        files.makedirs(self._directory)
        if len(files.listdir(self._directory)) > _MANY:
            leased(self._directory, Counters())  # for its removing of those whose process is gone
        while True:
            path = f"{self._directory}/{files.unique_name()}"
            fd = files.open(path, files.CREATE | os.O_APPEND, files.PRIVATE_FILE)
            try:
                files.flock(fd, files.LOCK_EX | files.LOCK_NB)
                info = files.fstat(fd)
                if info.st_nlink:  # else somebody took it for abandoned before it was locked
                    lines = "".join(f"{name}\n" for name in sorted(self.names)).encode()
                    if lines:
                        files.write_all(fd, [lines], len(lines))
                    self._fd, self._path = fd, path
                    self._identity = (info.st_dev, info.st_ino)
                    return
            except BaseException:
                files.close_quietly(fd)
                raise
            files.close_quietly(fd)

    def retire(self) -> None:
        """At the end of this process: remove the file, unless a parent or child still needs it."""
        if not self._is_open():
            return
        files.close_quietly(self._fd)
        self._fd = -1
        _remove_if_free(self._path)

    def after_fork(self) -> None:
        self._lock = allocate_lock()  # a thread that is gone may have held it


def _remove_if_free(path: str) -> bool:
    """Whether the lease belonged to nobody and is gone. Raises BlockingIOError when somebody lives, and OSError."""
    fd = files.open(path, files.READ)
    try:
        if not files.LOCK_EX:
            if time.time() - files.fstat(fd).st_mtime < _UNLOCKED_AGE:
                return False
        else:
            files.flock(fd, files.LOCK_EX | files.LOCK_NB)
        files.unlink(path)
        return True
    finally:
        files.close_quietly(fd)


def leased(directory: str, counters: Counters) -> set[str] | None:
    """Every name that a living process was given; None when that cannot be found out.

    Leases of the dead are removed on the way.
    """
    names: set[str] = set()
    try:
        found = files.listdir(directory)
    except FileNotFoundError:
        return names
    except OSError as error:
        counters.error("lease", error)
        return None
    for name in found:
        path = f"{directory}/{name}"
        try:
            try:
                if _remove_if_free(path):
                    continue
            except BlockingIOError:
                pass
            fd = files.open(path, files.READ)
            try:
                names.update(files.read_all(fd, files.fstat(fd).st_size).decode("ascii", "replace").split())
            finally:
                files.close_quietly(fd)
        except FileNotFoundError:
            continue  # its process ended meanwhile
        except OSError as error:
            counters.error("lease", error)
            return None
    return names


_leases: dict[str, Lease] = {}


def lease_on(directory: str) -> Lease:
    """This process's lease for ``directory``; kept until the process ends, whatever becomes of the caller."""
    return _leases.setdefault(directory, Lease(directory))


def _at_exit() -> None:
    for lease in _leases.values():
        try:
            lease.retire()
        except OSError:
            pass  # somebody else uses it, or it is gone; the next to look at it decides


def _after_fork_in_child() -> None:
    for lease in _leases.values():
        lease.after_fork()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
