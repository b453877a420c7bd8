"""What a closure of headers rests on, in the form in which it is quickest to look at again.

A closure stays what it is while every file in it is the same file, and nothing has
appeared in any place where the compiler would have looked first. A ``Manifest`` lists
both. Looking at it again costs one ``stat`` a file and about as much for every place
that must be empty; where many names must be missing from one directory, the directory
is listed once instead.
"""

from __future__ import annotations

import os
from stat import S_ISDIR

from .. import memo
from ..digest import digest_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..memo import Identity

#: Raised when the meaning of a stored manifest or of a closure's digest changes.
VERSION = "2"

#: Manifests kept per directory of the memo; there are sixteen.
_MOST = 128


class Manifest:
    """The digest of a closure and everything that would have to change for it to change."""

    __slots__ = ("absent", "digest", "directories", "files", "listed", "names", "perishable", "young")

    digest: str
    #: The names of the files in the closure, as they were included. For people.
    names: tuple[str, ...]
    files: list[tuple[str, Identity]]
    #: Files that were changed a moment ago, with the digest of what was read: see ``memo.settled``.
    young: list[tuple[str, Identity, str]]
    #: Places where nothing may be.
    absent: list[str]
    #: Directories, with the names none of which may be in them.
    listed: list[tuple[str, frozenset[str]]]
    #: Places where a directory has the name of a file; the compiler passes it by.
    directories: list[str]
    #: Rests on something that cannot be looked at again cheaply: valid now, not to be kept.
    perishable: bool

    def __init__(self, digest: str, names: tuple[str, ...]) -> None:
        self.digest = digest
        self.names = names
        self.files = []
        self.young = []
        self.absent = []
        self.listed = []
        self.directories = []
        self.perishable = False

    def holds(self) -> bool:
        """Whether nothing has changed."""
        stat = os.stat
        try:
            for path, known in self.files:
                status = stat(path)
                if (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns) != known:
                    return False
            access = os.access
            for path in self.absent:
                if access(path, os.F_OK):
                    return False
            for path, missing in self.listed:
                if not missing.isdisjoint(os.listdir(path)):  # noqa: PTH208
                    return False
            for path in self.directories:
                if not S_ISDIR(stat(path).st_mode):
                    return False
            return not self.young or self._young_hold()
        except OSError:
            # Gone, or no longer ours to see: whatever the reason, not as it was.
            return False

    def _young_hold(self) -> bool:
        """Read again what was too young to be known by its times; what has settled since is read for the last time."""
        still = []
        for path, known, digest in self.young:
            data, now = read(path)
            if now != known or digest_of(data) != digest:
                return False
            if memo.settled(known):
                self.files.append((path, known))
            else:
                still.append((path, known, digest))
        self.young = still
        return True

    def store(self, directory: str, label: str) -> None:
        """Keep this manifest under ``label`` for other processes, unless it will not last."""
        if self.perishable or self.young:
            return
        fields = [VERSION, label, self.digest, str(len(self.files))]
        for path, known in self.files:
            fields += [path, *map(str, known)]
        fields += [str(len(self.absent)), *self.absent, str(len(self.listed))]
        for path, missing in self.listed:
            fields += [path, str(len(missing)), *sorted(missing)]
        fields += [str(len(self.directories)), *self.directories, *self.names]
        place = f"{directory}/closures/{label[0]}"
        if memo.write(f"{place}/{label[1:]}", os.fsencode("\0".join(fields))):
            _prune(place)


def recall(directory: str, label: str) -> Manifest | None:
    """The manifest kept under ``label``, whether it still holds or not; None when there is none."""
    payload = memo.read(f"{directory}/closures/{label[0]}/{label[1:]}")
    if payload is None:
        return None
    try:
        fields = os.fsdecode(payload).split("\0")
        # The label is inside what is checked: a memo copied over another's is nobody's.
        if fields[0] == VERSION and fields[1] == label:
            return _read_fields(fields)
    except (IndexError, ValueError):
        # The checksum holds and the shape does not: written by something else than this.
        pass
    memo.COUNTERS["damaged"] += 1
    return None


def _read_fields(fields: list[str]) -> Manifest:
    found = Manifest(fields[2], ())
    end = 4 + 5 * int(fields[3])
    found.files = [
        (fields[at], (int(fields[at + 1]), int(fields[at + 2]), int(fields[at + 3]), int(fields[at + 4])))
        for at in range(4, end, 5)
    ]
    found.absent, at = _counted(fields, end)
    count = int(fields[at])
    at += 1
    for _ in range(count):
        path = fields[at]
        missing, at = _counted(fields, at + 1)
        found.listed.append((path, frozenset(missing)))
    found.directories, at = _counted(fields, at)
    found.names = tuple(fields[at:])
    return found


def _counted(fields: list[str], at: int) -> tuple[list[str], int]:
    """A list that begins with its length, and where the next begins. Raises IndexError, ValueError."""
    count = int(fields[at])
    end = at + 1 + count
    if count < 0 or end > len(fields):
        raise ValueError(count)
    return fields[at + 1 : end], end


def _prune(place: str) -> None:
    """Forget the oldest manifests of a directory that has too many. Losing one costs reading some headers again."""
    try:
        with os.scandir(place) as entries:
            kept = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        if len(kept) > _MOST:
            kept.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
            for entry in kept[: len(kept) - _MOST * 3 // 4]:
                os.unlink(entry.path)
    except OSError:
        # Another process prunes the same directory.
        memo.COUNTERS["dropped"] += 1


def read(path: str) -> tuple[bytes, Identity]:
    """A file's content and the identity it had all the while. Raises OSError, also when it will not hold still."""
    for _ in range(3):
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            before = memo.identity(os.fstat(handle))
            pieces = []
            while piece := os.read(handle, before[1] + 1):
                pieces.append(piece)
            data = b"".join(pieces)
            if memo.identity(os.fstat(handle)) == before and len(data) == before[1]:
                return data, before
        finally:
            os.close(handle)
    raise OSError(f"{path} changes while it is read")
