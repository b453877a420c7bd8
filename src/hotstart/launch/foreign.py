"""Which files of the redirected directories were not made here: ``HOME/launch/foreign``, JSON.

A file that was restored from an entry of a remote is somebody else's code, and stays so when
its unit is captured again, because a program added to it or its entry is gone. Captured as
one's own it would be signed here, and run by machines that do not trust who made it. So who
signed it, and for which scope, is noted before the file is put in place, and holds for its
path until nothing is there any more.

A record that is lost is made again from what the entries of the store say. Files that no entry
speaks of are in doubt where a remote was ever used: they count as somebody's, whose signature
nobody checked.
"""

from __future__ import annotations

import json
import os

from ..compilers.frameworks import FRAMEWORKS
from . import inventory as inventories
from . import parcel, places, state
from .live import Turn
from .survey import Survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from .session import Session
    from .survey import Found

    #: Who signed it, "" if nobody's signature was checked; the scope.
    Origin = tuple[str, str]

_VERSION = 1

_DIRECTORIES = {row.name: row.directory for row in FRAMEWORKS}

#: Of what nobody can tell who made it, and of what several made together.
UNKNOWN = ("", "")


def load(home: str) -> dict[str, Origin] | None:
    """Path under the root → who made it; None if there is no record that can be read."""
    try:
        fd = os.open(_path(home), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            data: dict[str, Any] = json.loads(file.read().decode("utf-8", "surrogatepass"))
        if data["version"] != _VERSION:
            return None
        return {str(path): (str(signer), str(scope)) for path, signer, scope in data["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(home: str, record: Mapping[str, Origin]) -> bool:
    """Whether it could be written."""
    data = {"version": _VERSION, "files": [[path, *origin] for path, origin in record.items()]}
    return places.replace(_path(home), json.dumps(data, separators=(",", ":")).encode("utf-8", "surrogatepass"))


def note(session: Session, origins: Mapping[str, Origin], survey: Survey | None = None) -> bool:
    """Remember these as well, before the files are put in place; whether it could be. The caller holds the turn."""
    if not origins:
        return True
    record = recall(session, survey)
    for path, origin in origins.items():
        record[path] = origin
    return save(session.home, record)


def settle(session: Session, survey: Survey) -> None:
    """Forget those that are gone, and make a record where there is none. The caller holds the turn."""
    before = load(session.home)
    record = before if before is not None else recall(session, survey)
    there = {f"{unit.row.directory}/{path}" for unit in survey.units.values() for path in unit.files}
    kept = {
        path: origin for path, origin in record.items() if path in there or os.path.lexists(f"{session.root}/{path}")
    }
    if kept != before:
        save(session.home, kept)


def recall(session: Session, survey: Survey | None = None) -> dict[str, Origin]:
    """The record, made again if it is lost. What this run wrote before it was missed is its own."""
    found = load(session.home)
    if found is not None:
        return found
    if not _may_hold_foreign(session):
        return {}
    told: dict[str, Origin | None] = {}
    from ..store.listing import described

    for store in session.stores:
        for _, about, _, origin in described(store, parcel.KIND):
            try:
                directory = _DIRECTORIES[about["framework"]]
                for path, *_ in about["files"]:
                    if told.get(f"{directory}/{path}") is None:
                        told[f"{directory}/{path}"] = origin
            except (KeyError, TypeError, ValueError):
                continue  # of another version of hotstart
    made: dict[str, Origin] = {}
    began = session.began_ns - state.TICK_NS  # the times of files come from a clock that lags behind
    if survey is None:
        survey = Survey(session.root, {})
    for unit in survey.units.values():
        for path, file in unit.files.items():
            whole = f"{unit.row.directory}/{path}"
            origin = told.get(whole, UNKNOWN if file.modified < began else None)
            if origin is not None:
                made[whole] = origin
    return made


def of_units(record: Mapping[str, Origin], units: Iterable[Found]) -> Origin | None:
    """Who made these units, together; None if all of them were made here."""
    found = {
        record[whole] for unit in units for path in unit.files if (whole := f"{unit.row.directory}/{path}") in record
    }
    if len(found) > 1:
        return UNKNOWN
    return found.pop() if found else None


def remove_signed(session: Session, key_id: str, wait: float = 10.0) -> int:
    """Take off the disk every unit with a file that came signed by this key; the files that are gone.

    Of revoking a key, the part that the store does not know of; to be called before its entries are removed.
    A live run may have loaded them before. Raises OSError when it cannot be our turn.
    """
    if not os.path.isdir(session.root):
        return 0
    with Turn(session.home, wait) as mine:
        if not mine:
            raise OSError("another run is restoring or capturing: files that came signed by this key are still there")
        known = inventories.load(session.home) or inventories.Inventory(session.root)
        survey = Survey(session.root, known.paths())
        record = recall(session, survey)
        theirs = [
            name
            for name, unit in survey.units.items()
            if any(record.get(f"{unit.row.directory}/{path}", UNKNOWN)[0] == key_id for path in unit.files)
        ]
        gone = 0
        for name in theirs:
            unit = survey.units[name]
            base = f"{session.root}/{unit.row.directory}"
            for path in unit.files:
                if places.unlink(f"{base}/{path}"):
                    gone += 1
                    places.prune(os.path.dirname(f"{base}/{path}"), base)
            before = known.units.pop(name, None)
            if before is not None and before.group:
                known.groups.pop(inventories.label(name[0], before.group), None)
        if theirs:
            state.forget(session.home)
            known.save(session.home)
            settle(session, Survey(session.root, known.paths()))
    return gone


def _may_hold_foreign(session: Session) -> bool:
    """Whether a remote was used here, as far as can be told."""
    marks = (f"{state.directory(session.home)}/asked", f"{session.home}/remote")
    return bool(session.config["remote"]) or any(map(os.path.exists, marks))


def _path(home: str) -> str:
    return f"{state.directory(home)}/foreign"
