"""What the table of frameworks says about each: one ``Framework`` a row, and what its columns mean.

    Framework          who, where its cache goes, what else to set, how far it can be trusted
    ├── Variable       an environment variable that moves the cache, and to where under the root
    ├── Setting        another variable to set beside it, and why
    ├── Unit           which of its files belong together
    ├── Rewrite        which of its files hold the path they lie at, and what puts it right
    └── Check          which of its files may be torn, and what tells

Rows are data. Nothing here looks at the machine, imports a framework or touches a
file; ``frameworks`` merges the rows, ``units`` sorts files by them, ``relocate`` holds
the few functions that a row names, and ``launch`` decides what is set and when.

Plain classes: this is on the way to the child process of ``hotstart run``, and
importing ``dataclasses`` would cost ten times the table.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: What a hit hands to the process, from harmless to not. ``Framework.trust`` holds all that apply.
DATA = "data"  # parsed, and checked by the parser at most: JSON, timings
DEVICE = "device code"  # a cubin or PTX: runs on the GPU with the rights of the process
PICKLE = "pickle"  # whoever wrote it runs code in the process that reads it
NATIVE = "native code"  # machine code or Python source for the host: the same
TRUST = (DATA, DEVICE, PICKLE, NATIVE)

#: How much of a row has been shown on a machine, not read or remembered.
COMPILED = "compile"  # a real compile in tests/frameworks, whose second run compiled nothing
REDIRECTED = "redirect"  # its released code was run and named our directory; nothing was compiled
DOCUMENTED = "documentation"  # what its documentation or source says
PROOFS = (COMPILED, REDIRECTED, DOCUMENTED)

#: When a framework looks at its variables, so that ``init`` knows what comes too late.
AT_START = "process start"  # by a library as it is loaded, or once by the driver
AT_IMPORT = "import"  # when its package is imported; later changes are not seen
AT_USE = "use"  # at the first compile or at each

#: How the files of a unit change after they were written.
ONCE = "once"  # never: the name is the key, so a file that differs is damaged (the unit may gain files)
REPLACED = "replaced"  # by newer content under the same name: an index, a build; two of them cannot be merged
DATABASE = "database"  # SQLite, written in place by live processes: copied by its own backup, never as bytes
NEVER = "never"  # locks, logs, temporary files, downloads: left where they are
CHANGES = (ONCE, REPLACED, DATABASE, NEVER)


class _Row:
    """A row of the table: made once, then fixed."""

    __slots__: tuple[str, ...] = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a row of the table is not to be changed: {type(self).__name__}.{name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a row of the table is not to be changed: {type(self).__name__}.{name}")

    def columns(self) -> dict[str, Any]:
        """The row as plain data, rows inside it too: what ``--json`` prints."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {getattr(self, self.__slots__[0])}>"


def _plain(value: object) -> object:
    if isinstance(value, _Row):
        return value.columns()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


#: The one way around ``_Row.__setattr__``, for the constructors.
_set = object.__setattr__


class Variable(_Row):
    """``name`` is to be set to ``path`` under the root of all redirected directories.

    ``path`` is relative, with "/", and lies inside ``Framework.directory``. It names
    a directory, or (tinygrad) a file in one, that the framework makes for itself.
    """

    __slots__ = ("name", "path")
    name: str
    path: str

    def __init__(self, name: str, path: str) -> None:
        _set(self, "name", name)
        _set(self, "path", path)


class Setting(_Row):
    """``name`` is to be set to ``value`` as well, because of ``why``, a sentence for people."""

    __slots__ = ("name", "value", "why")
    name: str
    value: str
    why: str

    def __init__(self, name: str, value: str, why: str) -> None:
        _set(self, "name", name)
        _set(self, "value", value)
        _set(self, "why", why)


class Unit(_Row):
    """The files that match ``pattern``, and how they belong together.

    ``pattern`` is a regular expression for the whole path of a file relative to
    ``Framework.directory``, with "/". The group called ``unit`` names the unit: files
    for which it gives the same text are taken, checked and given back together, all
    or none. Without such a group all matching files are one unit.

    The patterns of a row are tried in order; the first that matches decides.
    ``changes`` is one of ``CHANGES``. ``what`` says to people what this is.
    """

    __slots__ = (*("what", "pattern"), "changes")
    what: str
    pattern: str
    changes: str

    def __init__(self, what: str, pattern: str, changes: str = ONCE) -> None:
        _set(self, "what", what)
        _set(self, "pattern", pattern)
        _set(self, "changes", changes)


class Rewrite(_Row):
    """Files matching ``pattern`` (as in ``Unit``) hold absolute paths of the directory they lie in.

    ``function`` is the name of a function in ``relocate``, called as
    ``function(data, old, new)`` with the bytes of the file and two directories.
    """

    __slots__ = (*("pattern",), "function")
    pattern: str
    function: str

    def __init__(self, pattern: str, function: str) -> None:
        _set(self, "pattern", pattern)
        _set(self, "function", function)


class Check(_Row):
    """Files matching ``pattern`` (as in ``Unit``) are written in place: one of a killed process may be torn.

    ``function`` is the name of a function in ``soundness``, called with the bytes of
    the file: whether they are whole.
    """

    __slots__ = (*("pattern",), "function")
    pattern: str
    function: str

    def __init__(self, pattern: str, function: str) -> None:
        _set(self, "pattern", pattern)
        _set(self, "function", function)


class Framework(_Row):
    """One row: what hotstart knows of one framework's own cache.

    name          how people name it: ``--only triton``, ``hotstart stats``
    title         what it is called
    distributions packages whose presence and version say whether it is there; () for a driver
    tested        versions this row was tried with; () if none was
    directory     its place under the root; all its files are below
    variables     what moves the cache there; () if nothing does
    settings      what else to set, each with its reason
    default       where it writes without us, as people write it: ``~/.triton/cache``; "off" if it does not
    fixed         directories it uses whatever is set, as people write them
    read          when it looks at the variables: AT_START, AT_IMPORT or AT_USE
    modules       for AT_IMPORT: once one of these is imported, setting the variables is too late
    units         how its files group; a file that matches none is unknown and left alone.
                  Paths are relative to ``directory``, of a row without variables to its first ``fixed``
    linked        a hit needs several units that name each other by hash inside files:
                  those that appeared in one run are given back together or not at all
    rewrites      what to rewrite when the root has moved
    checks        which files can be told to be torn, where the framework itself never mends them
    moves         whether a hit survives another root, once ``rewrites`` are done; None: not known
    follows       whether a hit survives another place of the user's program; None: not known
    times         modification times are part of its key (ninja): to be kept to the nanosecond
    trust         what a hit hands to the process: of DATA, DEVICE, PICKLE, NATIVE
    unkeyed       what changes the output and is not in its key: a hit can be wrong after such a change
    proof         COMPILED, REDIRECTED or DOCUMENTED
    suite         the make target whose tests show it: "test", or "test-all" for what is installed apart
    opt_in        not set unless asked for: its default directory is already good for most
    notes         what else people should know
    """

    __slots__ = (
        *("name", "title", "distributions", "tested", "directory", "variables", "settings", "default", "fixed"),
        *("read", "modules", "units", "linked", "rewrites", "checks", "moves", "follows", "times", "trust"),
        *("unkeyed", "proof", "suite", "opt_in", "notes"),
    )
    name: str
    title: str
    distributions: tuple[str, ...]
    tested: tuple[str, ...]
    directory: str
    variables: tuple[Variable, ...]
    settings: tuple[Setting, ...]
    default: str
    fixed: tuple[str, ...]
    read: str
    modules: tuple[str, ...]
    units: tuple[Unit, ...]
    linked: bool
    rewrites: tuple[Rewrite, ...]
    checks: tuple[Check, ...]
    moves: bool | None
    follows: bool | None
    times: bool
    trust: tuple[str, ...]
    unkeyed: tuple[str, ...]
    proof: str
    suite: str
    opt_in: bool
    notes: tuple[str, ...]

    def __init__(
        self,
        name: str,
        title: str,
        *,
        distributions: tuple[str, ...],
        tested: tuple[str, ...] = (),
        directory: str = "",
        variables: tuple[Variable, ...],
        settings: tuple[Setting, ...] = (),
        default: str,
        fixed: tuple[str, ...] = (),
        read: str,
        modules: tuple[str, ...] = (),
        units: tuple[Unit, ...],
        linked: bool = False,
        rewrites: tuple[Rewrite, ...] = (),
        checks: tuple[Check, ...] = (),
        moves: bool | None = None,
        follows: bool | None = None,
        times: bool = False,
        trust: tuple[str, ...],
        unkeyed: tuple[str, ...] = (),
        proof: str,
        suite: str = "test-all",
        opt_in: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        directory = directory or name
        given = locals()
        for column in self.__slots__:
            _set(self, column, given[column])
