"""Takes in what a program compiled: new units of the redirected directories become entries of the store.

Runs after the command has ended, however it ended, until it is done, out of time or told to
stop. What was not taken in stays in its directory, and the next run takes it in. A unit that
is being written by somebody else is left for later; one that is torn is removed, so that
the framework can make it again.
"""

from __future__ import annotations

import time

from ..compilers.contract import DATABASE, ONCE
from ..compilers.soundness import is_sound
from . import budget, foreign, parcel, places, state
from . import inventory as inventories
from .clone import can_clone, share_with_store
from .inventory import Group, Inventory, Known, label
from .live import Turn, others
from .parcel import Packed
from .restore import give_back, is_torn, note
from .session import Event
from .survey import Survey
from .usage import arm, costs, hits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..compilers.contract import Framework
    from .session import Session
    from .survey import Found, Name

#: Databases above this size are taken in again only when they have grown, not after every hit that they note.
_LARGE_DATABASE = 64 << 20

#: Files above this size are left where they are: they would have to be in memory whole.
_LARGEST = 1 << 30


class OutOfTimeError(Exception):
    """The grace is over, or somebody asked us to stop."""


def take_in(session: Session, wait: float, stop: Callable[[], bool]) -> None:
    """Capture what is new, note what was read, keep the budget. ``stop`` is asked between files.

    Never raises for what the disk does; ``session.events`` and ``troubles`` say what happened.
    """
    with Turn(session.home, wait) as mine:
        if not mine:
            session.troubles.append("another run was capturing: what is new is taken in by the next run")
            return
        known = inventories.load(session.home) or Inventory(session.root)
        before = state.read(session.home, session.root)
        if before is None or before.changed():
            time.sleep(state.TICK_NS / 1e9)  # a directory that changed within the last tick could change again unseen
        survey = Survey(session.root, known.paths())
        new = [name for name, unit in survey.units.items() if name[0] in session.rows and _is_new(unit, known, name)]
        read = hits(session, known, survey, new)
        prices = costs(session, survey, new)
        if session.read_only:
            session.events += [Event(name, "new", prices[name], survey.units[name].size) for name in new]
            return
        budget.before_capture(session, known, survey, new)
        work = _Capture(session, known, survey, prices, stop)
        try:
            work.all(new, read)
        except OutOfTimeError:
            session.troubles.append("there was no time to take everything in: the next run does")
        healed = _heal(session, known, survey)
        for name in new:
            if name in survey.units:
                arm(session, survey.units[name])  # a framework loads what it has just built
        used = _used(known, [*read, *new])
        known.remember(session.workload, used)
        _touch(session, known, used)
        held = survey.bytes
        budget.keep(session, known, survey, [*read, *new])
        if work.removed or healed or survey.bytes != held:
            survey = Survey(session.root, known.paths())
        note(session, known, survey)


def _heal(session: Session, known: Inventory, survey: Survey) -> bool:
    """Give back what has become shorter than it was: a framework trips over a torn file at every start.

    Whether anything was. Start-ups do not look at files, so this is where such damage shows.
    """
    torn = [
        name
        for name, unit in survey.units.items()
        if name[0] in session.rows and name in known.units and is_torn(known.units[name], unit)
    ]
    groups = [group for group in _used(known, torn) if group in known.groups]
    if not groups:
        return False
    session.events += [Event(name, "damaged", known.units[name].cost) for name in torn]
    return bool(give_back(session, known, groups, survey))


def _touch(session: Session, known: Inventory, used: list[str]) -> None:
    """Reading a unit in its directory is a use of its entry: eviction must not take a busy workload for an old one."""
    if session.store is None:
        return
    now = time.time_ns()
    for group in (known.groups[each] for each in used):
        for part in range(group.parts):
            session.store.touch(parcel.key(group.framework, group.name, part).digest, now)


def _used(known: Inventory, names: Iterable[Name]) -> list[str]:
    groups = {label(name[0], known.units[name].group) for name in names if name in known.units}
    return sorted(group for group in groups if group in known.groups)


def _is_new(unit: Found, known: Inventory, name: Name) -> bool:
    """Whether it is not in the store, or no longer as it is there."""
    before = known.units.get(name)
    if before is None or not before.group:
        return True
    if unit.kind.changes == ONCE:
        return not unit.files.keys() <= before.files.keys()
    now = {path: (file.size, file.modified) for path, file in unit.files.items()}
    if unit.kind.changes == DATABASE and unit.size > _LARGE_DATABASE:
        return sum(size for size, _ in now.values()) > before.size
    return now != before.files


class _Capture:
    def __init__(
        self,
        session: Session,
        known: Inventory,
        survey: Survey,
        prices: dict[Name, float],
        stop: Callable[[], bool],
    ) -> None:
        self.session = session
        self.known = known
        self.survey = survey
        self.prices = prices
        self.stop = stop
        #: Whether torn files were removed.
        self.removed = False
        self._alone = not others(session.home, session.id)
        self._share = _can_share(session)
        self._installed: list[str] | None = None
        self._foreign = foreign.recall(session, survey)

    def all(self, new: list[Name], read: list[Name]) -> None:
        """Every new unit: by itself, or for linked frameworks with what appeared beside it."""
        linked: dict[str, list[Name]] = {}
        needs: dict[str, set[str]] = {}
        for name in new:
            row = self.session.rows[name[0]]
            unit = self.survey.units[name]
            if row.linked and unit.kind.changes == ONCE:
                linked.setdefault(row.name, []).append(name)
                continue
            group = self._group(row, f"{name[1]}/{name[2]}", [name], [])
            if group is not None and row.linked:
                needs.setdefault(row.name, set()).add(group)
        for framework, names in linked.items():
            row = self.session.rows[framework]
            wanted = needs.get(framework, set()) | set(self._read_before(framework, read))
            self._group(row, _group_name(names), names, sorted(wanted))

    def _read_before(self, framework: str, read: list[Name]) -> list[str]:
        """Groups that a new one may rely on: those that were read, or all where that is not known."""
        names = read if self.session.reads_known else self.known.units
        return [group for group in _used(self.known, names) if self.known.groups[group].framework == framework]

    def _group(self, row: Framework, group: str, names: list[Name], needs: list[str]) -> str | None:
        """Store these units as one group; its label, or None if that could not be done."""
        plan = self._parts(names)
        origin = foreign.of_units(self._foreign, (self.survey.units[name] for name in names))
        units: list[Name] = []
        stored = True
        # The first part last: it is the one that says that the group is there.
        for number in reversed(range(len(plan))):
            contents: list[Packed] = []
            for name in plan[number]:
                if self.stop():
                    raise OutOfTimeError
                found = self._contents(row, name)
                if found is not None:
                    units.append(name)
                    contents += found
            about: dict[str, object] = {
                "version": parcel.VERSION,
                "group": group,
                "part": number,
                "parts": len(plan),
            }
            if number == 0:
                about |= {"needs": needs, "units": [self._listed(name) for name in units], "torch": self._torch(row)}
            cost = sum(self.prices.get(name, 0.0) for name in plan[number])
            stored = stored and bool(units) and self._put(row, group, number, contents, about, cost, origin)
        if not units:
            return None
        name_of = label(row.name, group)
        if stored:
            torch = tuple(self._torch(row))
            self.known.groups[name_of] = Group(row.name, group, len(plan), needs, self.session.root, torch)
            self.known.trimmed.discard(name_of)
        for name in units:
            unit = self.survey.units[name]
            self.known.units[name] = Known.of(unit, group if stored else "", self.prices.get(name, 0.0))
            if name not in self.session.resettled:
                self.session.events.append(Event(name, "new", self.prices.get(name, 0.0), unit.size))
        return name_of if stored else None

    def _torch(self, row: Framework) -> list[str]:
        """Where torch is, for what depends on it: site-packages and identity, or nothing."""
        if row.name != "torch":
            return []
        if self._installed is None:
            from .resettle import of_program

            found = of_program(self.session)
            self._installed = [found.site, found.identity] if found is not None else []
        return self._installed

    def _parts(self, names: list[Name]) -> list[list[Name]]:
        """The units in lots of about ``parcel.PART`` bytes; a unit is never torn apart."""
        parts: list[list[Name]] = [[]]
        filled = 0
        for name in names:
            size = self.survey.units[name].size
            if filled and filled + size > parcel.PART:
                parts.append([])
                filled = 0
            parts[-1].append(name)
            filled += size
        return parts

    def _listed(self, name: Name) -> list[object]:
        files = self.survey.units[name].files
        seen = [[path, file.size, file.modified] for path, file in files.items()]
        return [*name[1:], self.prices.get(name, 0.0), seen]

    def _put(
        self,
        row: Framework,
        group: str,
        number: int,
        contents: list[Packed],
        about: dict[str, object],
        cost: float,
        origin: tuple[str, str] | None,
    ) -> bool:
        """``origin``: whose code it is if any of it is not ours; see ``foreign``."""
        try:
            artifacts, described = parcel.pack(row, self.session.root, contents, share=self._share)
        except ValueError as error:
            self.session.troubles.append(f"{row.name}: {error}")
            return False
        key = parcel.key(row.name, group, number)
        stored = self.session.keep(key, artifacts, {**about, **described}, cost, origin)
        if stored:
            for index in described["large"]:
                path = f"{self.session.root}/{row.directory}/{contents[index].path}"
                share_with_store(self.session.store, artifacts[f"large/{index}"], path)
        return stored

    def _contents(self, row: Framework, name: Name) -> list[Packed] | None:
        """The files of a unit, whole; None if it is not to be had now, and why is noted."""
        unit = self.survey.units[name]
        base = f"{self.session.root}/{row.directory}"
        if unit.kind.changes == DATABASE:
            return self._database(base, unit)
        contents = []
        for path, file in sorted(unit.files.items()):
            if file.size > _LARGEST:
                self.session.troubles.append(f"{row.name}: {path} is too large to be taken in")
                return None
            try:
                data, seen = parcel.read_file(f"{base}/{path}")
            except OSError:
                return None  # being written, or gone: the next run looks again
            if not is_sound(row, path, data):
                self._torn(row, name, base, path)
                return None
            contents.append(Packed(path, data, bool(seen.st_mode & 0o100), seen.st_mtime_ns))
        return contents

    def _torn(self, row: Framework, name: Name, base: str, path: str) -> None:
        """A file that somebody was killed over. The framework would trip over it for ever: it goes.

        Unless another run is alive, which may be writing it now.
        """
        self.session.events.append(Event(name, "damaged"))
        if self._alone and places.unlink(f"{base}/{path}"):
            self.removed = True
            self.survey.units.pop(name, None)

    def _database(self, base: str, unit: Found) -> list[Packed] | None:
        """A copy by SQLite itself: whoever has the database open may be writing."""
        contents = []
        for path, file in sorted(unit.files.items()):
            if path.endswith(("-wal", "-shm", "-journal")):
                continue
            data = _backup(f"{base}/{path}", f"{state.directory(self.session.home)}/backup-{self.session.id}")
            if data is None:
                return None
            contents.append(Packed(path, data, False, file.modified))
        return contents or None


def _backup(path: str, temporary: str) -> bytes | None:
    try:
        import sqlite3
    except ImportError:
        return None
    try:
        source = sqlite3.connect(f"file:{_quoted(path)}?mode=ro", uri=True, timeout=1.0)
        try:
            target = sqlite3.connect(temporary)
            try:
                source.backup(target)
                target.execute("pragma journal_mode=delete")
            finally:
                target.close()
        finally:
            source.close()
        return parcel.read_file(temporary)[0]
    except (OSError, sqlite3.Error):
        return None
    finally:
        for name in (temporary, f"{temporary}-journal", f"{temporary}-wal", f"{temporary}-shm"):
            places.unlink(name)


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _group_name(names: list[Name]) -> str:
    """A name for what appeared together, made of the names of all of it."""
    from blake3 import blake3

    text = "\0".join(f"{what}\0{name}" for _, what, name in sorted(names))
    return "run-" + blake3(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _can_share(session: Session) -> bool:
    """Whether the file system lets two files share blocks."""
    store = session.store
    # Asked beside the directories and not in them: they would look changed.
    return store is not None and can_clone(f"{store.root}/tmp", state.directory(session.home))
