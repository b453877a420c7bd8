"""What was computed from other files, remembered in small files of our own.

A memo is a hint: it saves reading a compiler or a tree of headers again. It is
written whole (unique temporary name, then rename) and read back only when its
checksum holds and nobody else could have written it; anything else is as if it
did not exist, counted in ``COUNTERS``, and the answer is computed again.

    memo    = magic checksum payload
    magic   = "hotstart memo 1" NL
    checksum = XXH3-128 of the payload, 16 bytes
"""

from __future__ import annotations

import os
import time

from xxhash import xxh3_128_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    Identity = tuple[int, int, int, int]

_MAGIC = b"hotstart memo 1\n"
_PAYLOAD = len(_MAGIC) + 16

#: No memo of ours comes near this; a larger file is not one.
_LARGEST = 64 << 20

#: Until this long after its last change a file can change again without a visible
#: sign: two seconds is the coarsest clock a file system keeps (FAT, old NFS).
SETTLING_NS = 2_000_000_000

#: Memos that did not check, and writes that failed or were not allowed.
COUNTERS = {"damaged": 0, "dropped": 0}

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_user = getattr(os, "geteuid", lambda: 0)
_serial = 0


def identity(status: os.stat_result) -> Identity:
    """What changes when a file does. The change time cannot be set back, the modification time can."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def settled(known: Identity, now_ns: int | None = None) -> bool:
    """Whether a file seen at ``now_ns`` with this identity would show any later change in it.

    A file changed a moment ago can change again within the same tick of the file
    system's clock and keep its identity; what was read from it is right, but its
    identity must not stand for it yet. A clock that runs behind (a time stamp in
    the future) means no, which costs reading again and is never wrong.
    """
    if now_ns is None:
        now_ns = time.time_ns()
    return now_ns - max(known[2], known[3]) > SETTLING_NS


def default_directory() -> str:
    """Where memos live unless a caller says otherwise: ``memo`` under hotstart's home."""
    environ = os.environ
    home = environ.get("HOTSTART_HOME")
    if not home:
        base = environ.get("XDG_CACHE_HOME") or f"{os.path.expanduser('~')}/.cache"
        home = f"{base}/hotstart"
    return f"{home}/memo"


def read(path: str) -> bytes | None:
    """The payload of a memo, or None when there is none that can be believed."""
    try:
        handle = os.open(path, os.O_RDONLY | _NOFOLLOW)
    except OSError:
        # Absent, unreadable or a symbolic link: nothing is remembered.
        return None
    try:
        status = os.fstat(handle)
        if status.st_mode & 0o170022 != 0o100000 or status.st_uid != _user() or status.st_size > _LARGEST:
            # Not a plain file, or somebody else may have written it.
            COUNTERS["damaged"] += 1
            return None
        data = os.read(handle, status.st_size)
    except OSError:
        return None
    finally:
        os.close(handle)
    payload = data[_PAYLOAD:]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : _PAYLOAD] != xxh3_128_digest(payload):
        COUNTERS["damaged"] += 1
        return None
    return payload


def write(path: str, payload: bytes) -> bool:
    """Replace the memo at ``path``; False when that was not possible, and no harm done."""
    global _serial
    if os.environ.get("HOTSTART_READ_ONLY", "").lower() not in ("", "0", "false", "no", "off"):
        return False
    _serial += 1
    temporary = f"{path}.{os.getpid()}.{_serial}.{time.monotonic_ns()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW
    try:
        try:
            handle = os.open(temporary, flags, 0o600)
        except FileNotFoundError:
            _make_private(os.path.dirname(path))
            handle = os.open(temporary, flags, 0o600)
        try:
            data = memoryview(_MAGIC + xxh3_128_digest(payload) + payload)
            while data:
                data = data[os.write(handle, data) :]
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except OSError:
        # Full, read-only or not ours: the next process computes again.
        COUNTERS["dropped"] += 1
        try:
            os.unlink(temporary)
        except OSError:
            pass
        return False
    return True


def _make_private(directory: str) -> None:
    """Create ``directory`` and what is missing above it, all 0700 (``os.makedirs`` gives its mode to the last only)."""
    missing = []
    while directory and not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for path in reversed(missing):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            # Another process made it in the meantime.
            continue
