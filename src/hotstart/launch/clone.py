"""Files that share blocks, where the file system can: a large file is then on the disk once.

The store's copy and the framework's are made one by asking the kernel to compare and share
them (FIDEDUPERANGE). Neither changes by it, and whoever writes to one later gets blocks of
his own: nothing that a hard link would do.
"""

from __future__ import annotations

import os
import struct

from ..store import files
from . import places

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..store.local import LocalStore

_FICLONE = 0x40049409
_FIDEDUPERANGE = 0xC0189436
_RANGE = struct.Struct("=QQHHI")
_TARGET = struct.Struct("=qQQiI")

#: The kernel shares at most this much a call.
_MOST = 16 << 20
_BLOCK = 4096

_known: dict[tuple[str, str], bool] = {}


def can_clone(first: str, second: str) -> bool:
    """Whether files in these two directories can share blocks. Asked by trying, once."""
    asked = _known.get((first, second))
    if asked is None:
        asked = _known[first, second] = _try(first, second)
    return asked


def _try(first: str, second: str) -> bool:
    if fcntl is None:
        return False
    one, two = (f"{place}/.clone-{files.unique_name()}" for place in (first, second))
    opened = []
    try:
        for path in (one, two):
            opened.append(files.open(path, files.CREATE, files.PRIVATE_FILE))  # noqa: PERF401  # closed below
        files.write(opened[0], bytes(_BLOCK))
        source = files.open(one, files.READ)
        opened.append(source)
        fcntl.ioctl(opened[1], _FICLONE, source)
    except OSError:
        return False
    finally:
        for fd in opened:
            files.close_quietly(fd)
        places.unlink(one)
        places.unlink(two)
    return True


def share_with_store(store: LocalStore | None, data: bytes | memoryview, path: str) -> None:
    """The file at ``path`` holds ``data``, and so does a blob of the store: one copy is enough."""
    if store is not None:
        from ..keys.digest import digest_of

        share(store.blobs.path(digest_of(memoryview(data))), path, len(data))


def share(source: str, target: str, size: int) -> int:
    """Have the first ``size`` bytes of two equal files share blocks; how many bytes do now. Never raises."""
    if fcntl is None:
        return 0
    size -= size % _BLOCK
    shared = 0
    try:
        from_fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            to_fd = os.open(target, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                while shared < size:
                    length = min(_MOST, size - shared)
                    request = bytearray(_RANGE.pack(shared, length, 1, 0, 0) + _TARGET.pack(to_fd, shared, 0, 0, 0))
                    fcntl.ioctl(from_fd, _FIDEDUPERANGE, request)
                    _, _, done, status, _ = _TARGET.unpack_from(request, _RANGE.size)
                    if status != 0 or done == 0:
                        break
                    shared += done
            finally:
                os.close(to_fd)
        finally:
            os.close(from_fd)
    except OSError:
        return shared
    return shared
