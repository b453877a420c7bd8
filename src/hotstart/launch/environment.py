"""What to set so that every framework keeps its cache with us, and what was left alone.

The table in ``compilers`` says what; this says whether. What the user has set stays,
unless forced. If that is the first variable of a row, the user has chosen where that
framework's cache lies, and the rest of the row, settings and all, stays away too.
A variable that already has our value is ours: an outer ``hotstart run`` set it.
"""

from __future__ import annotations

import os

from ..compilers.frameworks import chosen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..compilers.contract import Framework

#: Where the redirected directories and the notes about them lie under ``HOTSTART_HOME``.
FRAMEWORKS = "frameworks"

#: Set for every program under ``hotstart run``, so that ``init`` inside it leaves capturing to us.
MARK = "HOTSTART_RUN"


class Plan:
    """``variables`` to set, by name; ``left`` alone: framework → the variables that kept the user's value;
    ``rows``: the frameworks whose directory is ours in this run."""

    __slots__ = ("left", "rows", "variables")

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.left: dict[str, list[str]] = {}
        self.rows: list[Framework] = []


def plan(root: str, environ: Mapping[str, str], only: Iterable[str] | None = None, *, force: bool = False) -> Plan:
    """Decide for every row of the table. Raises UsageError for a name in ``only`` that is in no row.

    An empty value counts as set: the user may mean "off" by it.
    """
    made = Plan()
    for row in chosen(only):
        if not row.variables:
            continue
        kept: list[str] = []
        for number, variable in enumerate(row.variables):
            value = f"{root}/{variable.path}"
            if not force and environ.get(variable.name, value) != value:
                kept.append(variable.name)
                if number == 0:
                    break
            else:
                made.variables[variable.name] = value
        if not kept or kept[0] != row.variables[0].name:
            made.rows.append(row)
            for setting in row.settings:
                if not force and environ.get(setting.name, setting.value) != setting.value:
                    kept.append(setting.name)
                else:
                    made.variables[setting.name] = setting.value
        if kept:
            made.left[row.name] = kept
    return made


def exports(only: list[str] | None = None, *, force: bool = False) -> dict[str, str]:
    """What ``hotstart env`` prints: the variables for this user, as configured. The directories exist afterwards.

    Nothing when hotstart is turned off. Raises UsageError (an unknown name, a setting
    that makes no sense) and StoreError (a home that cannot be used).
    """
    from ..config import home_directory, load

    config = load()
    if config["disable"]:
        return {}
    root = directories(home_directory(config["home"]))
    return plan(root, os.environ, only, force=force).variables


def directories(home: str) -> str:
    """The root of the redirected directories, made if need be, private. Raises StoreError or OSError."""
    home = os.path.abspath(home)
    root = f"{home}/{FRAMEWORKS}"
    try:
        seen = os.lstat(root)
    except OSError:
        seen = None
    # The usual case, without importing more: a directory of ours that nobody else may write into.
    if seen is not None and seen.st_mode & 0o170022 == 0o040000 and seen.st_uid == os.geteuid():
        return root
    from ..store.files import private_directory

    return private_directory(root)


def users_locale(environ: dict[str, str]) -> None:
    """Take back what Python did to the locale as it started (PEP 538): the child is to have the user's.

    Python sets LC_CTYPE where the locale was plain C. What was there before is in the
    process's first environment, which Linux still shows; elsewhere it is inferred.
    """
    if environ.get("LC_CTYPE") not in ("C.UTF-8", "C.utf8", "UTF-8") or environ.get("LC_ALL"):
        return
    try:
        fd = os.open("/proc/self/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        if environ.get("LANG", "") in ("", "C", "POSIX"):
            del environ["LC_CTYPE"]
        return
    try:
        data = b""
        while piece := os.read(fd, 1 << 16):
            data += piece
    finally:
        os.close(fd)
    for line in data.split(b"\0"):
        if line.startswith(b"LC_CTYPE="):
            environ["LC_CTYPE"] = os.fsdecode(line[9:])
            return
    del environ["LC_CTYPE"]
