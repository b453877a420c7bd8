"""``hotstart doctor``: what is wrong with this environment, and what to do about it.

    doctor            the patient, what a check returns, and the list of checks
    checks_disk       where the home lies: file system, rights, space, clock
    checks_store      what is in it: versions, locks, damage
    checks_program    what runs there: variables, versions of frameworks, the order of imports

A check is a function of the patient that returns findings, none when there is nothing to
say. It changes nothing (one writes and removes a file of its own to see what a write does),
takes no lock for longer than a look, and does not raise: a check that fails is a finding.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: How bad it is. Errors keep hotstart from helping; warnings cost something; notes are good to know.
ERROR, WARNING, NOTE, OK = "error", "warning", "note", "ok"
LEVELS = (ERROR, WARNING, NOTE, OK)


class Finding:
    """One thing to say: what is the case, and what to do about it ("" where there is nothing to do)."""

    __slots__ = ("check", "level", "remedy", "text")

    def __init__(self, level: str, text: str, remedy: str = "") -> None:
        self.level = level
        self.text = text
        self.remedy = remedy
        #: Which check found it; set by ``examine``.
        self.check = ""

    def plain(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("check", "level", "text", "remedy")}

    def __repr__(self) -> str:
        return f"<Finding {self.level}: {self.text}>"


class Patient:
    """What is examined. Everything a check looks at comes from here, so that each can be shown a bad case."""

    __slots__ = ("budget", "environ", "home", "python", "script", "under")

    def __init__(
        self,
        home: str,
        *,
        budget: int = 10 << 30,
        environ: Mapping[str, str] | None = None,
        script: str = "",
        python: str = "",
        under: Iterable[str] = (),
    ) -> None:
        self.home = os.path.abspath(home)
        #: ``max_size``, in bytes.
        self.budget = budget
        self.environ = os.environ if environ is None else environ
        #: A program whose imports are looked at, if any.
        self.script = script
        #: The interpreter whose packages are looked at: the first on the PATH unless given.
        self.python = python
        #: Read-only layers: stores under ours.
        self.under = list(under)

    @property
    def store(self) -> str:
        return f"{self.home}/store"

    @property
    def root(self) -> str:
        """Where the redirected directories are."""
        from ..launch.environment import FRAMEWORKS

        return f"{self.home}/{FRAMEWORKS}"

    @property
    def ground(self) -> str:
        """The home, or the nearest directory above it that exists: where it would be made."""
        path = self.home
        while not os.path.isdir(path):
            parent = os.path.dirname(path)
            if parent == path:
                return "/"
            path = parent
        return path


def examine(patient: Patient, only: Iterable[str] = ()) -> list[Finding]:
    """All findings, in the order of the checks; a check without any says OK."""
    wanted = set(only)
    found = []
    for name, check in checks().items():
        if wanted and name not in wanted:
            continue
        try:
            findings = list(check(patient))
        except Exception as error:  # a check that cannot be done is a finding, and the others go on
            findings = [Finding(WARNING, f"could not be checked: {type(error).__name__}: {error}")]
        for finding in findings or [Finding(OK, "")]:
            finding.check = name
            found.append(finding)
    return found


def checks() -> dict[str, Callable[[Patient], Iterable[Finding]]]:
    """Every check by the name people see."""
    from . import checks_disk, checks_program, checks_store

    return {
        "home": checks_disk.home,
        "permissions": checks_disk.permissions,
        "file system": checks_disk.file_system,
        "executable": checks_disk.executable,
        "space": checks_disk.space,
        "inodes": checks_disk.inodes,
        "clock": checks_disk.clock,
        "store": checks_store.store,
        "layers": checks_store.layers,
        "locks": checks_store.locks,
        "quarantine": checks_store.quarantine,
        "future": checks_store.future,
        "records": checks_store.run_records,
        "switches": checks_program.switches,
        "variables": checks_program.variables,
        "versions": checks_program.versions,
        "python": checks_program.python,
        "imports": checks_program.imports,
    }
