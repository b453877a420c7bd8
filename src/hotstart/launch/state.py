"""What the redirected directories looked like when they were last gone through: ``HOME/launch/state``.

A run has to know, before it starts the command, whether anything is missing, and after it
ended, whether anything is new. Both are answered by comparing times: of every directory,
and of the few files that frameworks change in place. Nothing is opened, listed or imported
for it, so that a run in which nothing happened costs a ``stat`` a directory.

    state  = "hotstart launch 1" NL root NUL bytes NUL crc32 NUL (time NUL path NUL)*

``time`` is in nanoseconds; 0 for what has to be looked at again in any case. ``bytes`` is
the size of all files together. A state that is missing, damaged or of another root means:
go through everything. It is derived, and deleting it loses nothing.
"""

from __future__ import annotations

import os
from zlib import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MAGIC = b"hotstart launch 1\n"

#: A directory changed less than this before it was listed may change again within the same tick of
#: the clock that its times are taken from, and nobody would see it.
TICK_NS = 50_000_000

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class State:
    """``times``: path (relative to the root, as bytes) → nanoseconds, in turn; ``bytes``: of all files."""

    __slots__ = ("bytes", "root", "times")

    def __init__(self, root: str, times: Iterable[tuple[bytes, int]], total: int) -> None:
        self.root = root
        self.times = dict(times)
        self.bytes = total

    def changed(self) -> bool:
        """Whether anything is not as it was."""
        lstat = os.lstat
        base = os.fsencode(self.root) + b"/"
        try:
            for path, time in self.times.items():
                if lstat(base + path).st_mtime_ns != time:
                    return True
        except OSError:
            return True
        return False


def directory(home: str) -> str:
    """Where notes about the redirected directories are kept."""
    return f"{home}/launch"


def read(home: str, root: str) -> State | None:
    """The state of ``root``; None when there is none to rely on."""
    try:
        fd = os.open(f"{home}/launch/state", _READ)
        try:
            data = os.read(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
    except OSError:
        return None
    start, _, rest = data.partition(b"\n")
    head = rest.split(b"\0", 3)
    if start + b"\n" != _MAGIC or len(head) != 4 or head[0] != os.fsencode(root):
        return None
    if head[2] != b"%08x" % crc32(head[3]):
        return None
    fields = head[3].split(b"\0")
    try:
        return State(root, zip(fields[1::2], map(int, fields[0:-1:2]), strict=True), int(head[1]))
    except ValueError:
        return None


def write(home: str, state: State) -> bool:
    """Replace the state; False when the disk does not take it, and then there is none."""
    body = b"".join(b"%d\0%b\0" % (time, path) for path, time in state.times.items())
    data = b"%b%b\0%d\0%08x\0%b" % (_MAGIC, os.fsencode(state.root), state.bytes, crc32(body), body)
    from . import places

    if places.replace(f"{directory(home)}/state", data):
        return True
    forget(home)
    return False


def forget(home: str) -> None:
    """Have the next run go through everything: for whoever has put entries into the store for it to restore."""
    try:
        os.unlink(f"{directory(home)}/state")
    except OSError:
        pass  # there was none
