"""``hotstart verify`` for the redirected directories: every file compared with the store, and repaired from it."""

from __future__ import annotations

from ..compilers.contract import ONCE
from ..compilers.frameworks import FRAMEWORKS
from ..config import home_directory, load
from . import inventory as inventories
from . import parcel, places
from .environment import directories
from .live import Turn
from .restore import note
from .session import Session
from .survey import Survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .inventory import Inventory


class Report:
    """Paths under the redirected directories: ``ok`` counts those that are as stored; ``repaired`` were not, and are
    again; ``damaged`` are not, and the store could not help; ``unknown`` counts those that it never had."""

    __slots__ = ("damaged", "ok", "repaired", "unknown")

    def __init__(self) -> None:
        self.ok = 0
        self.unknown = 0
        self.repaired: list[str] = []
        self.damaged: list[str] = []


def verify(*, repair: bool = True) -> Report:
    """Compare every unit that does not change once it is written with its entry, byte by byte.

    Units that frameworks replace or write in place have no one right content: they are checked when
    they are restored. Raises StoreError or UsageError when there is no home to look at.
    """
    config = load()
    home = home_directory(config["home"])
    session = Session(config, home, directories(home), FRAMEWORKS, "verify")
    report = Report()
    try:
        with Turn(session.home, 60.0) as mine:
            known = inventories.load(session.home)
            if known is None:
                return report
            _check(session, known, report, repair and mine and not session.read_only)
    finally:
        session.end()
    return report


def _check(session: Session, known: Inventory, report: Report, repair: bool) -> None:
    survey = Survey(session.root, known.paths())
    members = known.members()
    stored = 0
    for label, group in known.groups.items():
        row = session.rows[group.framework]
        there = {
            path
            for name in members.get(label, ())
            if name in survey.units and survey.units[name].kind.changes == ONCE
            for path in survey.units[name].files
        }
        stored += len(there)
        for part in range(group.parts if there else 0):
            entry = session.entry(parcel.key(group.framework, group.name, part).digest)
            if entry is None:
                continue  # evicted, or damaged: the files are all there is, and may well be sound
            try:
                contents = parcel.unpack(row, session.root, entry, entry.meta)
            except parcel.BadParcelError:
                continue
            for file in contents:
                if file.path in there:
                    _compare(session, f"{row.directory}/{file.path}", file, report, repair)
                    there.discard(file.path)
        report.unknown += len(there)
    report.unknown += sum(len(unit.files) for unit in survey.units.values()) - stored
    if repair and report.repaired:
        note(session, known, Survey(session.root, known.paths()))


def _compare(session: Session, path: str, file: parcel.Unpacked, report: Report, repair: bool) -> None:
    whole = f"{session.root}/{path}"
    try:
        data, _ = parcel.read_file(whole)
    except OSError:
        data = None
    if data is not None and data == file.data:
        report.ok += 1
    elif repair and places.replace(
        whole,
        bytes(file.data),
        executable=file.executable,
        modified=file.modified,
        via=f"{session.home}/launch/staging",
    ):
        report.repaired.append(path)
    else:
        report.damaged.append(path)
