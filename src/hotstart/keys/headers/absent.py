"""What must stay absent for a closure to stay what it is."""

from __future__ import annotations

import os

from .. import memo
from ..toolchain.identity import status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .manifest import Manifest
    from .toolkits import Toolkit

#: From how many names on it is cheaper to list a directory than to ask for each.
_LIST_FROM = 10


class Absent:
    """Names that were looked for in vain, collected by the directory in which they would have to appear."""

    def __init__(self) -> None:
        self.missing: dict[str, set[str]] = {}
        self.paths: set[str] = set()
        self.watched: set[str] = set()
        self._exists: dict[str, bool] = {}

    def add(self, directory: str, name: str) -> None:
        """Nothing is at ``directory/name``. A name with ".." in it, or none, is kept as a whole path."""
        parts = name.split("/")
        if not name or ".." in parts or not directory:
            self.paths.add(f"{directory}/{name}" if name and directory else directory or name)
            return
        if not self._is_there(directory):
            self.paths.add(directory)
            return
        for part in parts:
            if part in ("", "."):
                continue
            below = f"{directory}/{part}"
            if not self._is_there(below):
                self.missing.setdefault(directory, set()).add(part)
                return
            directory = below
        # Every part exists and yet the file was not to be seen: a race, or no right to look.
        self.paths.add(directory)

    def within(self, toolkit: Toolkit, directory: str) -> None:
        """Files of ``toolkit`` were found in ``directory``: it stands for them."""
        self.watched.add(directory)
        if toolkit.marker:
            self.watched.add(toolkit.marker)

    def _is_there(self, path: str) -> bool:
        known = self._exists.get(path)
        if known is None:
            known = self._exists[path] = os.access(path, os.F_OK)
        return known

    def settle(self, result: Manifest, toolkits: Iterable[Toolkit | None]) -> None:
        """Put what was collected into a manifest in the form in which it is cheapest to check."""
        known_toolkits = [toolkit for toolkit in toolkits if toolkit]
        watched = set(self.watched)
        for directory, names in self.missing.items():
            if any(toolkit.covers(directory) for toolkit in known_toolkits):
                watched.add(directory)
            elif len(names) < _LIST_FROM:
                result.absent += [f"{directory}/{name}" for name in sorted(names)]
            else:
                result.listed.append((directory, frozenset(names)))
        result.absent += sorted(self.paths)
        for path in sorted(watched):
            known = status(path)
            if known is None or not memo.settled(known):
                result.perishable = True
            else:
                result.files.append((path, known))
