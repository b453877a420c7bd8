"""Goes through the redirected directories: every file, the unit it belongs to, and the time of every directory.

Links are not followed, and what is no regular file belongs to no unit. Files that come
and go meanwhile are seen or not; whoever takes them in looks again at each.
"""

from __future__ import annotations

import os
from stat import S_ISREG
from time import time_ns

from ..compilers.contract import DATABASE, NEVER, REPLACED
from ..compilers.frameworks import FRAMEWORKS
from ..compilers.units import unit_of
from .state import TICK_NS, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..compilers.contract import Framework, Unit

    #: Framework, what it is (``Unit.what``), name of the unit: what tells units apart.
    Name = tuple[str, str, str]

_ROWS = {row.directory: row for row in FRAMEWORKS}


class File:
    """What ``stat`` said of a file."""

    __slots__ = ("mode", "modified", "read", "size")

    def __init__(self, seen: os.stat_result) -> None:
        self.size = seen.st_size
        self.mode = seen.st_mode
        self.modified = seen.st_mtime_ns
        self.read = seen.st_atime_ns


class Found:
    """A unit on disk: its row, its kind, and its files by their path in the framework's directory."""

    __slots__ = ("files", "kind", "row")

    def __init__(self, row: Framework, kind: Unit) -> None:
        self.row = row
        self.kind = kind
        self.files: dict[str, File] = {}

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    @property
    def used(self) -> int:
        """When it was last read or written, as far as the file system tells."""
        return max(max(file.read, file.modified) for file in self.files.values())


class Survey:
    """All units under ``root``, the bytes of all files whatever they belong to, and the state to compare with."""

    def __init__(self, root: str, known: Mapping[str, Mapping[str, tuple[Framework, Unit, str] | None]]) -> None:
        """``known``: framework → path → where it belongs, for the paths that need not be sorted anew."""
        self.root = root
        self.bytes = 0
        #: Of those the bytes of files that belong to no unit, which nobody may take away: downloads, logs.
        self.loose = 0
        self.units: dict[Name, Found] = {}
        self._times: list[tuple[bytes, int]] = []
        self._began = time_ns()
        self._known = known
        for name, inside in self._directories(""):
            row = _ROWS.get(name)
            self._walk(row, inside)

    def state(self) -> State:
        return State(self.root, self._times, self.bytes)

    def _directories(self, path: str) -> Iterator[tuple[str, str]]:
        """The directories right below the root."""
        for item in self._list(path):
            if item.is_dir(follow_symlinks=False):
                yield item.name, item.name
            else:
                self._count(item)

    def _walk(self, row: Framework | None, top: str) -> None:
        waiting = [top]
        known = self._known.get(row.name, {}) if row is not None else {}
        prefix = len(top) + 1
        while waiting:
            place = waiting.pop()
            for item in self._list(place):
                path = f"{place}/{item.name}"
                if item.is_dir(follow_symlinks=False):
                    waiting.append(path)
                    continue
                seen = self._count(item)
                if seen is None:
                    continue
                if row is None or not S_ISREG(seen.st_mode):
                    self.loose += seen.st_size
                    continue
                inside = path[prefix:]
                if inside in known:
                    found = known[inside]
                else:
                    sorted_in = unit_of(row, inside)
                    found = (row, *sorted_in) if sorted_in is not None else None
                if found is None or found[1].changes == NEVER:
                    self.loose += seen.st_size
                    continue
                self._add(found, inside, path, seen)

    def _add(self, found: tuple[Framework, Unit, str], inside: str, path: str, seen: os.stat_result) -> None:
        row, kind, name = found
        unit = self.units.get((row.name, kind.what, name))
        if unit is None:
            unit = self.units[row.name, kind.what, name] = Found(row, kind)
        unit.files[inside] = File(seen)
        if kind.changes in (REPLACED, DATABASE):
            # May be written in place, which no directory shows.
            self._times.append((os.fsencode(path), seen.st_mtime_ns))

    def _list(self, path: str) -> list[os.DirEntry[str]]:
        """What is in a directory, and its time as it was before that was found out."""
        whole = f"{self.root}/{path}" if path else self.root
        try:
            modified = os.lstat(whole).st_mtime_ns
            if self._began - modified < TICK_NS:
                modified = 0
            with os.scandir(whole) as items:
                listed = list(items)
        except OSError:
            return []  # gone meanwhile, or not ours to look into: then its files are nobody's
        self._times.append((os.fsencode(path) if path else b".", modified))
        return listed

    def _count(self, item: os.DirEntry[str]) -> os.stat_result | None:
        try:
            seen = item.stat(follow_symlinks=False)
        except OSError:
            return None
        self.bytes += seen.st_size
        return seen
