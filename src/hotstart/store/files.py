"""Every system call the store makes, under one roof.

The rest of ``store/`` calls ``files.open``, ``files.rename`` and so on, never
``os`` directly. That is the seam at which ``hotstart.testing.FailingIO`` makes
the N-th call fail, so that "what if the disk is full *here*" can be asked of
every line. The names are plain references: the seam costs one attribute look-up.
"""

from __future__ import annotations

import itertools
import os
import stat as _stat

from ..errors import StoreError, UnsafeStoreError

try:
    import fcntl as _fcntl

    flock = _fcntl.flock
    LOCK_EX, LOCK_NB, LOCK_UN = _fcntl.LOCK_EX, _fcntl.LOCK_NB, _fcntl.LOCK_UN
except ImportError:  # no flock on this platform: processes are then not kept apart, readers still verify
    LOCK_EX = LOCK_NB = LOCK_UN = 0

    def flock(fd: int, operation: int, /) -> None:  # type: ignore[misc]  # narrower: descriptors only
        """Nothing to lock with."""


#: Take the lock, or raise BlockingIOError at once.
LOCK_NOW = LOCK_EX | LOCK_NB

Status = os.stat_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

open = os.open  # noqa: A001  # this module stands for os here
close = os.close
read = os.read
write = os.write
pread = os.pread
pwrite = os.pwrite
writev = os.writev
fstat = os.fstat
stat = os.stat
rename = os.replace
unlink = os.unlink
mkdir = os.mkdir
utime = os.utime
fsync = os.fsync
ftruncate = os.ftruncate
access = os.access
listdir = os.listdir
scandir = os.scandir

#: Never follow a link out of the store, never leak a descriptor into a child.
_SAFE = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
READ = os.O_RDONLY | _SAFE
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
UPDATE = os.O_RDWR | os.O_CREAT | _SAFE

#: Names that the format needs and others must not guess.
PRIVATE_FILE = 0o600
PRIVATE_DIR = 0o700

#: writev takes at most this many pieces on Linux and macOS.
IOV_MAX = 1024


def read_all(fd: int, size: int) -> bytes:
    """The ``size`` bytes of ``fd``, or fewer where the file ends early."""
    data = read(fd, size)
    if len(data) == size or not data:
        return data
    pieces = [data]  # one read returns at most 2 GiB
    got = len(data)
    while got < size:
        data = read(fd, size - got)
        if not data:
            break
        pieces.append(data)
        got += len(data)
    return b"".join(pieces)


def read_at(fd: int, size: int, at: int) -> bytes:
    """As ``read_all``, from a place in the file."""
    pieces = []
    while size > 0:
        data = pread(fd, size, at)
        if not data:
            break
        pieces.append(data)
        size -= len(data)
        at += len(data)
    return b"".join(pieces)


def write_all(fd: int, pieces: Sequence[bytes | memoryview], size: int) -> None:
    """Write all pieces, in as few calls as the kernel allows."""
    done = writev(fd, pieces) if len(pieces) <= IOV_MAX else 0
    if done != size:
        write_rest(fd, pieces, done)


def write_rest(fd: int, pieces: Sequence[bytes | memoryview], done: int) -> None:
    """What is left after ``done`` bytes: a short write (a signal, a quota, more than 2 GiB), or very many pieces."""
    for piece in pieces:
        if done >= len(piece):
            done -= len(piece)
            continue
        rest = memoryview(piece)[done:]
        done = 0
        while rest:
            rest = rest[write(fd, rest) :]


_number = itertools.count()
_process = ""


def _renew() -> None:
    """Who we are, and chance against a reused process id; anew in a forked child."""
    global _process
    _process = f"{os.getpid():x}-{os.urandom(6).hex()}-"


_renew()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def unique_name() -> str:
    """A file name no other process or thread will use: who, which, and chance against a reused process id."""
    return _process + str(next(_number))


def makedirs(path: str) -> None:
    """Make a directory and all above it that are missing, each private; one that exists is fine.

    ``os.makedirs`` would give its mode to the last one only. FileExistsError when a file is in the way.
    """
    try:
        mkdir(path, PRIVATE_DIR)
        return
    except FileNotFoundError:
        makedirs(os.path.dirname(path))
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return
    try:
        mkdir(path, PRIVATE_DIR)
    except FileExistsError:  # made by somebody else just now
        if not os.path.isdir(path):
            raise


def sync_directory(path: str) -> None:
    fd = open(path, os.O_RDONLY)
    try:
        fsync(fd)
    finally:
        close(fd)


def close_quietly(fd: int) -> None:
    """Close what was only read or locked: an error then tells nothing, and the descriptor is gone all the same."""
    try:
        close(fd)
    except OSError:
        pass


def walk(root: str, depth: int, *, strict: bool = False) -> Iterator[tuple[str, str]]:
    """Files under ``depth`` levels of two-digit directories, as (digits so far, path).

    A directory that vanishes is passed over. So is one that cannot be read, but with
    ``strict`` that raises its OSError: for whoever takes what is not seen for gone.
    """
    try:
        with scandir(root) as found:
            names = sorted(item.name for item in found)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        if strict:
            raise
        return
    for name in names:
        path = f"{root}/{name}"
        if depth == 0:
            yield name, path
        elif len(name) == 2:
            for rest, inner in walk(path, depth - 1, strict=strict):
                yield name + rest, inner


def private_directory(path: str, *, writable: bool = True) -> str:
    """A directory for a store at ``path``, safe to read code from. Returns its path.

    - Nothing there: made, 0700 (only when ``writable``).
    - Ours, and nobody else may write into it: used as it is.
    - Shared (another owner, or writable by others) and not yet a store: a 0700
      child of our own inside it, since a scratch volume is often handed out 0777.
    - Shared and already a store: refused. Whoever can write there can have us
      load their machine code.

    A read-only layer may also belong to root. Raises StoreError and UnsafeStoreError
    for what has to be changed; OSError (full, read-only, no permission) passes through.
    """
    path = os.path.abspath(path)
    if writable:
        _make(path)
    info = _directory_status(path)
    if _is_ours(info, writable):
        return path
    if writable and not access(f"{path}/format", os.F_OK):
        child = f"{path}/hotstart-{os.geteuid()}"
        _make(child)
        if _is_ours(_directory_status(child), writable):
            return child
        path = child
    raise UnsafeStoreError(
        f"{path} belongs to another user or can be written by others, and a cache holds code that gets run; "
        f"choose another directory, or make it yours alone: chown -R $USER {path!r} && chmod 700 {path!r}"
    )


def _make(path: str) -> None:
    try:
        makedirs(path)
    except FileExistsError:
        raise StoreError(f"{path} is a file; a store needs a directory") from None
    except NotADirectoryError:
        raise StoreError(f"{path} cannot be a directory: a part of the path is a file") from None


def _directory_status(path: str) -> os.stat_result:
    info = stat(path)
    if not _stat.S_ISDIR(info.st_mode):
        raise StoreError(f"{path} is a file; a store needs a directory")
    return info


def _is_ours(info: os.stat_result, writable: bool) -> bool:
    if not hasattr(os, "geteuid"):
        return True  # no owners to compare on this platform
    owners = {os.geteuid()} if writable else {os.geteuid(), 0}
    return info.st_uid in owners and not info.st_mode & 0o022
