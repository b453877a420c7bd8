"""Files of one framework as an entry of the store, and back.

An entry holds its files one after another as one artifact, ``files``, zstd where that pays:
files of one compile resemble each other, and together they shrink several times more than
each alone. On a file system with reflinks large files are artifacts of their own, as they
are, so that the store and the framework share their blocks.

Metadata of every part:

    framework, group, part, parts     which entry this is
    root                              where the directories were, for frameworks that do not move
    packed                            "zstd" or "" for as it is
    files                             path, size, 1 if executable, modified (ns); in the order of the artifact
    large                             numbers of those files that are artifacts of their own

and of part 0 also ``needs`` (labels of groups) and ``units`` (what, name, cost, paths).

Paths inside the files are ``relocate.PLACE`` while they are stored.
"""

from __future__ import annotations

import os
import sys

from ..compilers.relocate import PLACE, holds_paths, relocated
from ..compilers.units import unit_of
from ..keys.key import Key
from ..store import files
from ..store.entry import check_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..compilers.contract import Framework
    from ..store.entry import Entry

KIND = "capture"
VERSION = 1

#: A part holds about this many bytes of files: enough for zstd to see what repeats, and little
#: enough that several can be in memory and be worked on at once.
PART = 16 << 20

#: Below this zstd saves nothing worth its call.
_SMALL = 4096

#: What zstd is tried on first; what does not shrink there is kept as it is.
_SAMPLE = 1 << 18
_WORTH_IT = 0.9

#: Files of this size are shared with the store where the file system can.
LARGE = 1 << 20

_ARTIFACT = "files"

#: Opening for us is no use by the framework: the time of the last read must stay what it is.
_READ = files.READ | getattr(os, "O_NOATIME", 0)


class BadParcelError(Exception):
    """An entry that does not hold what it says, or would write where it must not."""


class Packed:
    """One file on its way into the store."""

    __slots__ = ("data", "executable", "modified", "path")

    def __init__(self, path: str, data: bytes, executable: bool, modified: int) -> None:
        self.path = path
        self.data = data
        self.executable = executable
        self.modified = modified


def key(framework: str, group: str, part: int) -> Key:
    """Where a part is filed. Machine code of another kind of machine is another key."""
    return Key(
        KIND,
        name=framework,
        machine=f"{sys.platform} {os.uname().machine}",
        group=group,
        part=part,
        version=VERSION,
    )


def read_file(path: str) -> tuple[bytes, os.stat_result]:
    """The content of a file that did not change meanwhile. Raises OSError, also when it did."""
    try:
        fd = files.open(path, _READ)
    except PermissionError:
        fd = files.open(path, files.READ)  # somebody else's file: its time of reading is lost
    try:
        before = files.fstat(fd)
        data = files.read_all(fd, before.st_size)
        after = files.fstat(fd)
    finally:
        files.close(fd)
    if len(data) != before.st_size or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise OSError(f"{path} is being written")
    return data, before


def pack(
    row: Framework, root: str, contents: Sequence[Packed], *, share: bool
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Artifacts and metadata of a part. Raises ValueError for a file that cannot be relocated: its unit is damaged."""
    place = f"{root}/{row.directory}"
    listed = []
    together = []
    large = []
    artifacts: dict[str, bytes] = {}
    for number, file in enumerate(contents):
        data = relocated(row, file.path, file.data, place, PLACE)
        listed.append([file.path, len(data), int(file.executable), file.modified])
        if share and len(data) >= LARGE:
            large.append(number)
            artifacts[f"large/{number}"] = data
        else:
            together.append(data)
    whole = b"".join(together)
    packed = squeeze(whole)
    artifacts[_ARTIFACT] = whole if packed is None else packed
    about = {
        "framework": row.name,
        "root": root,
        "packed": "" if packed is None else "zstd",
        "files": listed,
        "large": large,
    }
    return artifacts, about


def squeeze(data: bytes) -> bytes | None:
    """``data`` as zstd, or None where that does not pay."""
    if len(data) < _SMALL:
        return None
    zstd = _zstd()
    if len(data) > 2 * _SAMPLE:
        middle = len(data) // 2
        sample = data[middle : middle + _SAMPLE]
        if len(zstd.compress(sample, 1)) > len(sample) * _WORTH_IT:
            return None
    packed: bytes = zstd.compress(data)
    return packed if len(packed) < len(data) * _WORTH_IT else None


class Unpacked:
    """A file of a part with its content, put right for where it goes; ``large`` if that is a blob of its own."""

    __slots__ = ("data", "executable", "large", "modified", "path")

    def __init__(self, path: str, data: bytes | memoryview, executable: bool, modified: int, large: bool) -> None:
        self.path = path
        self.data = data
        self.executable = executable
        self.modified = modified
        self.large = large


def unpack(row: Framework, root: str, entry: Entry, about: dict[str, Any]) -> list[Unpacked]:
    """The files of a part, checked against the table: each belongs to a unit of this framework and to no other place.

    ``about`` is the entry's metadata. Raises BadParcelError. The bytes themselves were checked when the entry was read.
    """
    try:
        if about["framework"] != row.name:
            raise BadParcelError(f"holds files of {about['framework']}")
        if row.moves is False and about["root"] != root:
            raise BadParcelError(f"was built for {about['root']} and does not move")
        whole = memoryview(_expand(entry[_ARTIFACT], about["packed"]))
        large = set(about["large"])
        place = f"{root}/{row.directory}"
        found = []
        at = 0
        for number, (path, size, executable, modified) in enumerate(about["files"]):
            check_name(path)
            if unit_of(row, path) is None:
                raise BadParcelError(f"{path!r} is no file of {row.title}")
            data: bytes | memoryview
            if number in large:
                data = entry[f"large/{number}"]
            else:
                data = whole[at : at + size]
                at += size
            if len(data) != size:
                raise BadParcelError("its parts do not add up")
            if holds_paths(row, path):
                data = relocated(row, path, bytes(data), PLACE, place)
            found.append(Unpacked(path, data, bool(executable), int(modified), number in large))
        if at != len(whole):
            raise BadParcelError("its parts do not add up")
    except (KeyError, TypeError, ValueError) as error:
        raise BadParcelError(str(error)) from None
    return found


def _expand(data: bytes, packed: str) -> bytes:
    if not packed:
        return data
    zstd = _zstd()
    try:
        whole: bytes = zstd.decompress(data)
    except (zstd.ZstdError, EOFError) as error:
        raise BadParcelError(str(error)) from None
    return whole


def _zstd() -> Any:
    """The zstd module: in the standard library from 3.14 on, a backport before."""
    try:
        from compression import zstd
    except ImportError:
        from backports import zstd
    return zstd
