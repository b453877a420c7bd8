"""Gives back what is missing: entries of the store become files of the frameworks again.

Groups are read, checked and written by several threads into a directory of their own, then
moved to where they belong: whole directories by one rename wherever none is there yet, so
that a framework never sees half of one. A group of which any part is missing, damaged or
does not fit the table is left out, and so is a group that needs it.

Runs before the command is started, and only when a directory is not as it was.
"""

from __future__ import annotations

from ..compilers.contract import ONCE
from ..compilers.relocate import holds_paths, relocated
from ..compilers.units import unit_of
from ..log import say
from ..store import files
from ..store.listing import described
from . import foreign, parcel, places, state
from . import inventory as inventories
from .child import asked_to_stop
from .inventory import Group, Inventory, Known, label
from .layout import INTERRUPTED, Work, age, merge
from .live import Turn
from .session import Event
from .survey import Survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from .session import Session
    from .survey import Found, Name

#: How long a start waits for another run that is restoring or capturing. What that one restores is
#: likely what is wanted here.
WAIT = 10.0

#: Asking torch for the names of its kernels takes this long, in seconds; below that they are sooner built again.
ASKING = 8.0


def bring_back(session: Session, *, catalogue: bool, fetch: Callable[[], bool] | None = None) -> None:
    """Restore what this run may want; afterwards state and inventory say what is there.

    ``catalogue`` says to ask the store which groups it has, and not the inventory alone.
    ``fetch`` is called first, once it is our turn, and says whether it put more there.
    Never raises for what the disk does: what cannot be restored is compiled.
    """
    with Turn(session.home, WAIT) as mine:
        if not mine:
            session.troubles.append("another run was restoring or capturing")
            return
        if fetch is not None and fetch():
            catalogue = True
        known = inventories.load(session.home)
        if known is None:
            known, catalogue = Inventory(session.root), True
        if catalogue:
            add_from_stores(session, known)
        survey = Survey(session.root, known.paths())
        if known.root != session.root:
            _move(session, known, survey)
        wanted = _missing(session, known, survey)
        if wanted:
            wanted = _that_fit(session, known, survey, wanted)
        if wanted:
            restored = give_back(session, known, wanted, survey)
            if asked_to_stop():
                return  # and the next run goes on from here: state and inventory are as they were
            _resettle(session, known, restored)
            survey = Survey(session.root, known.paths())
            _are_unread(known, survey, restored)
        note(session, known, survey)


def note(session: Session, known: Inventory, survey: Survey) -> None:
    """Make inventory and state lasting, in this order: a state without its inventory would hide what is missing."""
    foreign.settle(session, survey)
    found = survey.state()
    if known.trimmed or not survey.units.keys() <= known.units.keys():
        # Never there, so never as it was: each start has to ask what this workload wants back, and each end has
        # to take in what nobody has yet.
        found.times[b".unsettled"] = 0
    if known.save(session.home):
        state.write(session.home, found)
    else:
        state.forget(session.home)


def _are_unread(known: Inventory, survey: Survey, groups: list[str]) -> None:
    """Writing a file sets the time of its last read too: from now on counts only what is later."""
    members = known.members()
    for group in groups:
        for name in members[group]:
            found = survey.units.get(name)
            if found is not None:
                known.units[name].read = max(file.read for file in found.files.values())


def _resettle(session: Session, known: Inventory, restored: list[str]) -> None:
    """Kernels of torch that were built by the same torch at another path."""
    members = known.members()
    built: dict[tuple[str, ...], list[str]] = {}
    worth = 0.0
    for group in restored:
        found = known.groups[group].torch
        for name in members[group] if len(found) == 2 else ():
            kernels = [f"torch/{path}" for path in known.units[name].files if path.endswith(".main.cpp")]
            if kernels:
                worth += known.units[name].cost
                built.setdefault(found, []).extend(kernels)
    if not built or worth < ASKING:
        return
    from .resettle import Torch, resettle

    row = session.rows["torch"]
    whose = foreign.load(session.home) or {}
    theirs = {whose[path] for paths in built.values() for path in paths if path in whose}
    # Copies: whose they are is not told one by one, and all are of the same program.
    origin = (theirs.pop() if len(theirs) == 1 else foreign.UNKNOWN) if theirs else None
    for path in resettle(session, [(Torch(*torch), paths) for torch, paths in built.items()]):
        found_in = unit_of(row, path.removeprefix("torch/"))
        if found_in is not None:
            name = (row.name, found_in[0].what, found_in[1])
            session.resettled.add(name)
            if origin is not None:
                foreign.note(session, {path: origin, path.removesuffix(".cpp") + ".so": origin})
            session.events.append(Event(name, "restored"))


def add_from_stores(session: Session, known: Inventory) -> None:
    """Add the groups that the stores hold and the inventory does not know."""
    for store in session.stores:
        for _, about, cost, _ in described(store, parcel.KIND):
            try:
                if about["part"] == 0:
                    _add(known, about, cost)
            except (KeyError, TypeError, ValueError):
                continue  # of another version of hotstart: not ours to give back


def _add(known: Inventory, about: dict[str, Any], cost: float) -> None:
    framework, group = str(about["framework"]), str(about["group"])
    if about["version"] != parcel.VERSION or label(framework, group) in known.groups:
        return
    units: dict[Name, Known] = {}
    for what, name, unit_cost, listed in about["units"]:
        seen = {str(path): (int(size), int(modified)) for path, size, modified in listed}
        units[framework, what, name] = Known(seen, group, float(unit_cost))
    for unit, found in units.items():
        # A unit that is known from another group, or only from disk, stays what it is.
        if unit not in known.units or not known.units[unit].group:
            known.units[unit] = found
    known.groups[label(framework, group)] = Group(
        framework,
        group,
        int(about["parts"]),
        [str(need) for need in about["needs"]],
        str(about["root"]),
        tuple(str(text) for text in about.get("torch", ())),
    )


def _missing(session: Session, known: Inventory, survey: Survey) -> list[str]:
    """Labels of the groups of which a file is missing on disk, or shorter than it was."""
    lacking = []
    wanted = set(known.rosters.get(session.workload, ()))
    for group, names in known.members().items():
        if names[0][0] not in session.rows or (group in known.trimmed and group not in wanted):
            continue
        if any(lacks(known.units[name], survey, name) for name in names):
            lacking.append(group)
    return lacking


def lacks(unit: Known, survey: Survey, name: Name) -> bool:
    """Whether a file of the unit is missing on disk, or is torn."""
    found = survey.units.get(name)
    return found is None or not unit.files.keys() <= found.files.keys() or is_torn(unit, found)


def is_torn(unit: Known, found: Found) -> bool:
    """Whether a file that never changes has become shorter."""
    return found.kind.changes == ONCE and any(
        path in unit.files and file.size < unit.files[path][0] for path, file in found.files.items()
    )


def _that_fit(session: Session, known: Inventory, survey: Survey, wanted: list[str]) -> list[str]:
    """Of the missing groups those for which the budget has room; what this workload used last comes first."""
    members = known.members()
    roster = set(known.rosters.get(session.workload, ()))
    sizes = {group: sum(known.units[name].size for name in members[group]) for group in wanted}
    used = {group: max(known.units[name].read for name in members[group]) for group in wanted}
    wanted.sort(key=lambda group: (group in roster, used[group]), reverse=True)
    from .budget import make_room

    room = make_room(session, known, survey, sum(sizes[group] for group in wanted if group in roster), roster)
    chosen = []
    for group in wanted:
        if sizes[group] <= room:
            room -= sizes[group]
            known.trimmed.discard(group)
            chosen.append(group)
        else:
            known.trimmed.add(group)
    return chosen


def _move(session: Session, known: Inventory, survey: Survey) -> None:
    """The root has moved, with the files in it: put right those that hold its path."""
    old = known.root
    for unit in survey.units.values():
        row = unit.row
        for path in unit.files:
            if not holds_paths(row, path):
                continue
            whole = f"{session.root}/{row.directory}/{path}"
            try:
                data, _ = parcel.read_file(whole)
                moved = relocated(row, path, data, f"{old}/{row.directory}", f"{session.root}/{row.directory}")
            except (OSError, ValueError):
                continue  # written here already, or damaged: the framework compiles it again
            places.replace(whole, moved, via=f"{state.directory(session.home)}/staging")
    known.root = session.root


# -- writing files -------------------------------------------------------------


def give_back(session: Session, known: Inventory, wanted: Iterable[str], survey: Survey | None = None) -> list[str]:
    """Restore these groups; labels of those that were. Units on disk are completed and, if damaged, replaced.

    The caller holds the turn.
    """
    members = known.members()
    complete = _complete(session, known, list(wanted), survey, members)
    staging = f"{state.directory(session.home)}/staging"
    places.remove_tree(staging)  # of a run that was killed: the turn is ours, so nobody is at it
    staging = f"{staging}/{files.unique_name()}"
    try:
        work = Work(session, staging, complete)
        work.run()
        age(work.directories)
        if not foreign.note(session, work.origins(), survey):
            # Nobody would know any more whose they are, and they would be published as ours.
            session.troubles.append("it could not be noted what came from a remote: nothing was restored")
            return []
        replaced = set()
        if survey is not None:
            for group in work.done:
                for name in members[group]:
                    replaced |= _damaged(known.units[name], survey, name, session.rows[name[0]].directory)
        left = merge(staging, session.root, replaced)
        if left:
            session.troubles.append(f"{left} files could not be put in place")
    finally:
        places.remove_tree(staging)
    for group in work.done:
        for name in members[group]:
            session.events.append(Event(name, "restored", known.units[name].cost, known.units[name].size))
    for group, reason in work.failed.items():
        say("info", f"{group} was not restored: {reason}")
        session.troubles.append(f"{group}: {reason}")
        if reason != INTERRUPTED:
            _forget(known, group, members)
    return work.done


def _forget(known: Inventory, group: str, members: dict[str, list[Name]]) -> None:
    """The store does not have it, or not whole. Units on disk are taken in again by the next capture."""
    known.groups.pop(group, None)
    for name in members.get(group, ()):
        known.units.pop(name, None)


def _complete(
    session: Session, known: Inventory, wanted: list[str], survey: Survey | None, members: dict[str, list[Name]]
) -> list[Group]:
    """Of the wanted groups those whose every part is in a store, and all that they need there or on disk."""
    answers: dict[str, bool] = {}

    def is_complete(name: str) -> bool:
        if name not in answers:
            answers[name] = True  # groups that need each other
            group = known.groups.get(name)
            row = session.rows.get(group.framework) if group is not None else None
            answers[name] = (
                group is not None
                and row is not None
                and (row.moves is not False or group.root == session.root)
                and all(
                    session.has(parcel.key(group.framework, group.name, part).digest) for part in range(group.parts)
                )
                and all(map(is_there, group.needs))
            )
        return answers[name]

    def is_there(name: str) -> bool:
        if survey is not None and name in members and not any(lacks(known.units[n], survey, n) for n in members[name]):
            return True
        return is_complete(name)

    found = []
    for name in wanted:
        group = known.groups.get(name)
        if group is None:
            continue
        if is_complete(name):
            found.append(group)
        elif not (group.root != session.root and session.rows[group.framework].moves is False):
            session.troubles.append(f"{name}: not whole in the store")
            _forget(known, name, members)
    return found


def _damaged(unit: Known, survey: Survey, name: Name, directory: str) -> set[str]:
    found = survey.units.get(name)
    if found is None or found.kind.changes != ONCE:
        return set()
    return {
        f"{directory}/{path}"
        for path, (size, _) in unit.files.items()
        if path in found.files and found.files[path].size < size
    }
