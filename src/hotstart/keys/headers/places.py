"""Places where headers are or are not: which directories belong to a toolkit, and what must stay absent."""

from __future__ import annotations

import os
import re

from .. import memo
from ..toolchain.identity import status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .manifest import Manifest

_WHEEL = re.compile(r".*/(?:site|dist)-packages/nvidia/[^/]+/include(?=/|$)")
_INSTALLED = re.compile(r"(.*?)(?:/targets/[^/]+)?/include(?=/|$)")

#: From how many names on it is cheaper to list a directory than to ask for each.
_LIST_FROM = 10


def toolkit(directory: str) -> str:
    """The include directory of a CUDA toolkit that ``directory`` is or lies in; "" when it is none.

    Those are NVIDIA's wheels and what its installers leave, with a ``version.json``.
    Anything else, conda's too, is treated as the user's own: file by file.
    """
    path = os.path.normpath(directory)
    wheel = _WHEEL.match(path)
    if wheel:
        return wheel[0]
    installed = _INSTALLED.match(path)
    if installed and os.path.isfile(f"{installed[1]}/version.json"):
        return installed[0]
    return ""


def inside(root: str, directory: str) -> bool:
    """Whether ``directory`` is ``root`` or under it."""
    path = os.path.normpath(directory)
    return path == root or path.startswith(root + "/")


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

    def within(self, root: str, directory: str) -> None:
        """Files of the toolkit at ``root`` were found in ``directory``: it stands for them."""
        self.watched.add(directory)
        marker = _INSTALLED.match(root)
        if marker:
            self.watched.add(f"{marker[1]}/version.json")

    def _is_there(self, path: str) -> bool:
        known = self._exists.get(path)
        if known is None:
            known = self._exists[path] = os.access(path, os.F_OK)
        return known

    def settle(self, result: Manifest, toolkits: list[str]) -> None:
        """Put what was collected into a manifest in the form in which it is cheapest to check."""
        roots = {root for root in toolkits if root}
        watched = set(self.watched)
        for directory, names in self.missing.items():
            if any(inside(root, directory) for root in roots):
                watched.add(directory)
            elif len(names) < _LIST_FROM:
                result.absent += [f"{directory}/{name}" for name in sorted(names)]
            else:
                result.listed.append((directory, frozenset(names)))
        result.absent += sorted(self.paths)
        for path in sorted(watched):
            known = status(path)
            if known is None:
                # There is no version.json in a wheel.
                continue
            if memo.settled(known):
                result.files.append((path, known))
            else:
                result.perishable = True
