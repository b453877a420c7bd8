"""A private temporary directory of this process, for files that have to be somewhere.

It is removed when the process ends. A process that is killed, or a worker that
ends without its exit handlers (``multiprocessing``'s do), leaves its directory
behind; the next process that makes one removes it. Who is alive is told by a lock
on the directory: process ids mean nothing between containers that share ``/tmp``.
"""

from __future__ import annotations

import atexit
import os
import time

from ..errors import StoreError
from ..store import files

_PREFIX = "hotstart-private-"

#: A directory younger than this may not have been locked yet by the one who makes it.
_YOUNG = 60.0

#: Removed in one go at most: what is left is for the next process, so that none waits long.
_AT_ONCE = 32

#: By process id, with the descriptor that holds the lock: a child must not take over, or remove, what is its parent's.
_directories: dict[int, tuple[str, int]] = {}


class Private:
    """Files by name, each with the content it was asked for; gone when the process ends."""

    __slots__ = ()

    def path_for(self, name: str, data: bytes) -> str:
        """Raises StoreError when nothing can be written anywhere."""
        path = f"{private_directory()}/{name}"
        try:
            with open(path, "rb") as file:
                if file.read() == data:
                    return path
        except OSError:
            pass  # not there yet, or not as it was left: written anew
        temporary = f"{path}.{files.unique_name()}"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.PRIVATE_FILE)
            with open(fd, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError as error:
            raise StoreError(f"{name} cannot be written, not even to a temporary directory: {error}") from error
        return path


def private_directory() -> str:
    """The directory of this process, made if there is none yet. Raises StoreError when none can be."""
    found = _directories.get(os.getpid())
    if found is None:
        import tempfile

        reasons = []
        for parent in (None, "/dev/shm"):
            try:
                path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
            except OSError as error:
                reasons.append(str(error))
                continue
            found = _directories[os.getpid()] = path, _lock(path)
            _remove_abandoned(os.path.dirname(path))
            break
        else:
            raise StoreError(f"no temporary directory can be written: {'; '.join(reasons)}")
    return found[0]


def _lock(path: str) -> int:
    """A descriptor that holds the lock on a directory; -1 if somebody else has it, or it cannot be locked."""
    try:
        fd = os.open(path, files.READ | getattr(os, "O_DIRECTORY", 0))
    except OSError:
        return -1
    try:
        files.flock(fd, files.LOCK_NOW)
    except OSError:
        os.close(fd)
        return -1
    return fd


def _remove_abandoned(parent: str) -> None:
    """Remove what processes that are gone have left; errors mean that it stays, for others to try."""
    if not files.LOCK_NOW:
        return  # nothing to tell the living by
    import shutil

    user = getattr(os, "geteuid", lambda: None)()
    left = _AT_ONCE
    try:
        with os.scandir(parent) as found:
            for entry in found:
                if not entry.name.startswith(_PREFIX) or not entry.is_dir(follow_symlinks=False):
                    continue
                info = entry.stat(follow_symlinks=False)
                if info.st_uid != user or time.time() - info.st_mtime < _YOUNG:
                    continue
                fd = _lock(entry.path)
                if fd >= 0:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(fd)
                    left -= 1
                if not left:
                    return
    except OSError:
        return


def _at_exit() -> None:
    found = _directories.pop(os.getpid(), None)
    if found is not None:
        import shutil

        shutil.rmtree(found[0], ignore_errors=True)


atexit.register(_at_exit)
