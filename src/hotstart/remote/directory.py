"""A shared directory as a remote: ``file:///mnt/team/hotstart``. Needs nothing but a file system.

An object is a file, written under a temporary name and given its own with ``link``,
which fails when the name is taken: create-only, also over NFS. Replacing is compare
and rename under ``flock``. Files follow the umask, since others are meant to read
them: what makes them trustworthy is their signature, not their mode.
"""

from __future__ import annotations

import errno
import os

from ..store import files
from .contract import (
    DEFAULT_TIMEOUT,
    AbsentError,
    BrokenError,
    Found,
    Item,
    RefusedError,
    Remote,
    RemoteError,
    TimedOutError,
    check_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import NoReturn

    from .contract import Bytes

#: Temporary files and the lock for replacing; begins with a dot, as no object does.
_PRIVATE = ".hotstart"

_REFUSED = {errno.EACCES: "denied", errno.EPERM: "denied", errno.EROFS: "read_only"} | dict.fromkeys(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "full"
)
_TIMED_OUT = {errno.ETIMEDOUT, errno.EHOSTDOWN}

#: Read and written at once: after each, whoever waits learns that the file system is alive.
_PIECE = 1 << 20


class Directory(Remote):
    """Objects as files under ``root``, which is made on the first write, never by a read.

    A call blocks for as long as the kernel does, with a dead NFS server for ever: ``guard`` bounds it.
    """

    unbounded = True

    def __init__(self, root: str, *, read_only: bool = False, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.root = os.path.abspath(root)
        self.read_only = read_only
        self.timeout = timeout
        self.shown = f"file://{self.root}"

    def get(self, name: str, limit: int) -> Found:
        self.requests += 1
        try:
            fd = files.open(self._path(name), files.READ)
            try:
                info = files.fstat(fd)
                data = self._read(fd, min(limit, info.st_size), 0)
            finally:
                files.close(fd)
        except OSError as error:
            self._fail(error, name)
        if len(data) != min(limit, info.st_size):
            raise BrokenError(f"{self.shown}: {name} became shorter while it was read", "truncated")
        return Found(data, info.st_size, _tag(info))

    def get_range(self, name: str, start: int, length: int, tag: str = "") -> Bytes:
        self.requests += 1
        try:
            fd = files.open(self._path(name), files.READ)
            try:
                if tag and _tag(files.fstat(fd)) != tag:
                    raise BrokenError(f"{self.shown}: {name} was replaced while it was read", "replaced")
                data = self._read(fd, length, start)
            finally:
                files.close(fd)
        except OSError as error:
            self._fail(error, name)
        if len(data) != length:
            raise BrokenError(f"{self.shown}: {name} is shorter than it should be", "truncated")
        return data

    def stream(self, name: str, start: int, length: int) -> Iterator[Bytes]:
        self.requests += 1
        try:
            fd = files.open(self._path(name), files.READ)
            try:
                for at in range(start, start + length, _PIECE):
                    piece = self._read(fd, min(_PIECE, start + length - at), at)
                    if len(piece) != min(_PIECE, start + length - at):
                        raise BrokenError(f"{self.shown}: {name} is shorter than it should be", "truncated")
                    yield piece
            finally:
                files.close(fd)
        except OSError as error:
            self._fail(error, name)

    def _read(self, fd: int, length: int, start: int) -> bytes:
        if length <= _PIECE:
            return files.read_at(fd, length, start)
        pieces = []
        for at in range(0, length, _PIECE):
            pieces.append(files.read_at(fd, min(_PIECE, length - at), start + at))
            self.beats += 1
        return b"".join(pieces)

    def put(self, name: str, data: Bytes, *, replaces: str = "") -> bool:
        self.requests += 1
        path = self._path(name)
        self._check_writable()
        try:
            temporary = self._write(data)
            try:
                return self._replace(temporary, path, replaces) if replaces else self._create(temporary, path)
            finally:
                _unlink(temporary)
        except OSError as error:
            self._fail(error, name)

    def _write(self, data: Bytes) -> str:
        path = f"{self.root}/{_PRIVATE}/{files.unique_name()}"
        try:
            fd = files.open(path, files.CREATE, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = files.open(path, files.CREATE, 0o666)
        try:
            try:
                view = memoryview(data)
                for at in range(0, max(len(view), 1), _PIECE):
                    files.write_all(fd, [view[at : at + _PIECE]], min(_PIECE, len(view) - at))
                    self.beats += 1
            finally:
                files.close(fd)  # where a network file system says that it is full
        except BaseException:
            _unlink(path)
            raise
        return path

    @staticmethod
    def _create(temporary: str, path: str) -> bool:
        try:
            try:
                os.link(temporary, path)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.link(temporary, path)
        except FileExistsError:
            return False
        return True

    def _replace(self, temporary: str, path: str, tag: str) -> bool:
        fd = files.open(f"{self.root}/{_PRIVATE}/lock", files.UPDATE, 0o666)
        try:
            files.flock(fd, files.LOCK_EX)
            try:
                now = files.stat(path, follow_symlinks=False)
            except FileNotFoundError:
                return False
            if _tag(now) != tag:
                return False
            files.rename(temporary, path)
            return True
        finally:
            files.close_quietly(fd)

    def delete(self, names: Iterable[str]) -> None:
        self._check_writable()
        for name in names:
            self.requests += 1
            self.beats += 1
            try:
                files.unlink(self._path(name))
            except FileNotFoundError:
                pass
            except OSError as error:
                self._fail(error, name)

    def list(self, prefix: str) -> Iterator[Item]:
        self.requests += 1
        start = self._path(prefix.rstrip("/")) if prefix else self.root
        try:
            yield from self._walk(start, prefix)
        except OSError as error:
            self._fail(error, prefix)

    def _walk(self, directory: str, prefix: str) -> Iterator[Item]:
        try:
            found = sorted(files.scandir(directory), key=lambda item: item.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        for item in found:
            self.beats += 1
            if item.name.startswith("."):
                continue
            if item.is_dir(follow_symlinks=False):
                yield from self._walk(item.path, f"{prefix}{item.name}/")
            elif item.is_file(follow_symlinks=False):
                try:
                    info = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted since it was listed
                yield Item(prefix + item.name, info.st_size, info.st_mtime)

    def _path(self, name: str) -> str:
        return f"{self.root}/{check_name(name)}"

    def _check_writable(self) -> None:
        if self.read_only:
            raise RefusedError(f"{self.shown} is read-only", "read_only")

    def _fail(self, error: OSError, name: str) -> NoReturn:
        raise _translate(error, f"{self.shown}: {name}") from None


def _translate(error: OSError, what: str) -> RemoteError:
    # NOTDIR: a part of the name is an object. LOOP: a symbolic link is in its place, and is not followed.
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        return AbsentError(f"{what}: no such object")
    text = f"{what}: {error.strerror or error}"
    if error.errno in _REFUSED:
        return RefusedError(text, _REFUSED[error.errno])
    if error.errno in _TIMED_OUT:
        return TimedOutError(text)
    return BrokenError(text, errno.errorcode.get(error.errno or 0, "broken"))


def _tag(info: os.stat_result) -> str:
    return f"{info.st_ino:x}-{info.st_size:x}-{info.st_mtime_ns:x}"


def _unlink(path: str) -> None:
    try:
        files.unlink(path)
    except OSError:
        pass  # renamed to its place, or left for somebody's clean-up: no object has such a name
