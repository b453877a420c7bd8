"""What is known of the units in the redirected directories: ``HOME/launch/inventory``, JSON.

Which units there are, which files belong to each and how those looked when they were taken
in, and in which entries of the store they are. It is derived: lost, it is made again from
the descriptions of the entries, and units on disk that it does not know are taken in anew.
Read only when something has changed.

Units are stored in **groups**. Of most frameworks each unit is a group; of those that the
table calls linked, all that appeared in one run is one. A group is one entry, or several
**parts** where it is large, and it is given back whole or not at all, together with the
groups that it **needs**.
"""

from __future__ import annotations

import json
import os

from ..compilers.frameworks import FRAMEWORKS
from . import places, state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..compilers.contract import Framework, Unit
    from .survey import Found, Name

_VERSION = 2

#: Of so many workloads is remembered what they used.
_ROSTERS = 64


class Known:
    """A unit that has been seen: files as path → (size, modified), its group ("" if it is not in the store),
    what it cost to make, when it was last read (0 if that is not known)."""

    __slots__ = ("cost", "files", "group", "read")

    def __init__(self, files: dict[str, tuple[int, int]], group: str = "", cost: float = 0.0, read: int = 0) -> None:
        self.files = files
        self.group = group
        self.cost = cost
        self.read = read

    @classmethod
    def of(cls, found: Found, group: str = "", cost: float = 0.0) -> Known:
        return cls({path: (file.size, file.modified) for path, file in found.files.items()}, group, cost, found.used)

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.files.values())


class Group:
    """``parts`` entries of the store; ``root`` where the directories were when they were made; ``torch`` where the
    torch that made them was installed, and its identity, if that is known."""

    __slots__ = ("framework", "name", "needs", "parts", "root", "torch")

    def __init__(
        self, framework: str, name: str, parts: int, needs: list[str], root: str, torch: tuple[str, ...] = ()
    ) -> None:
        self.framework = framework
        self.name = name
        self.parts = parts
        self.needs = needs
        self.root = root
        self.torch = torch


class Inventory:
    """``units`` by framework, kind and name; ``groups`` by ``label(framework, name of the group)``."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.units: dict[Name, Known] = {}
        self.groups: dict[str, Group] = {}
        #: Groups that were taken off the disk to keep the budget, and are not to be given back unasked.
        self.trimmed: set[str] = set()
        #: What each workload used when it ran last: names of workloads → labels of groups, latest last.
        self.rosters: dict[str, list[str]] = {}

    def remember(self, workload: str, groups: list[str]) -> None:
        """``workload`` used these groups just now. One that used none (``--help``) is as before."""
        if not groups:
            return
        self.rosters.pop(workload, None)
        self.rosters[workload] = groups
        for oldest in list(self.rosters)[:-_ROSTERS]:
            del self.rosters[oldest]

    def paths(self) -> dict[str, dict[str, tuple[Framework, Unit, str] | None]]:
        """Where each known path belongs, so that a survey need not ask the table again."""
        rows = {row.name: row for row in FRAMEWORKS}
        kinds = {(row.name, unit.what): unit for row in FRAMEWORKS for unit in reversed(row.units)}
        sorted_in: dict[str, dict[str, tuple[Framework, Unit, str] | None]] = {}
        for (framework, what, name), known in self.units.items():
            kind = kinds.get((framework, what))
            if kind is not None:
                into = sorted_in.setdefault(framework, {})
                for path in known.files:
                    into[path] = (rows[framework], kind, name)
        return sorted_in

    def members(self) -> dict[str, list[Name]]:
        """The units of each group."""
        found: dict[str, list[Name]] = {}
        for name, known in self.units.items():
            if known.group:
                found.setdefault(label(name[0], known.group), []).append(name)
        return found

    def save(self, home: str) -> bool:
        """Whether it could be written; if not, the next run makes do with the old one or none."""
        data = {
            "version": _VERSION,
            "root": self.root,
            "units": [
                [*name, known.group, known.cost, known.read, [[path, *seen] for path, seen in known.files.items()]]
                for name, known in self.units.items()
            ],
            "groups": [
                [group.framework, group.name, group.parts, group.needs, group.root, list(group.torch)]
                for group in self.groups.values()
            ],
            "trimmed": sorted(self.trimmed),
            "rosters": self.rosters,
        }
        text = json.dumps(data, separators=(",", ":"))
        return places.replace(f"{state.directory(home)}/inventory", text.encode("utf-8", "surrogatepass"))


def label(framework: str, group: str) -> str:
    return f"{framework}/{group}"


def load(home: str) -> Inventory | None:
    """The inventory; None if there is none that can be read."""
    try:
        fd = os.open(f"{state.directory(home)}/inventory", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            data: dict[str, Any] = json.loads(file.read().decode("utf-8", "surrogatepass"))
        if data["version"] != _VERSION:
            return None
        made = Inventory(str(data["root"]))
        for framework, what, name, group, cost, read, listed in data["units"]:
            files = {path: (int(size), int(modified)) for path, size, modified in listed}
            made.units[framework, what, name] = Known(files, group, float(cost), int(read))
        for framework, name, parts, needs, root, torch in data["groups"]:
            made.groups[label(framework, name)] = Group(framework, name, int(parts), list(needs), root, tuple(torch))
        made.trimmed = set(data["trimmed"])
        made.rosters = {str(name): [str(group) for group in groups] for name, groups in data["rosters"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return made
