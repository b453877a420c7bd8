"""The table of frameworks: every cache that ``hotstart run`` knows how to move, and what it takes.

The rows are in ``table_torch`` (torch and what is built on it), ``table_kernels``
(kernel languages and array libraries) and ``table_vendors`` (drivers, libraries,
command-line compilers); ``contract`` says what the columns mean. ``docs/compilers.md``
is made from it by ``python -m hotstart.compilers.document``.
"""

from __future__ import annotations

from ..errors import UsageError
from .table_kernels import KERNELS
from .table_torch import TORCH
from .table_vendors import VENDORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .contract import Framework

FRAMEWORKS: tuple[Framework, ...] = TORCH + KERNELS + VENDORS


def framework(name: str) -> Framework:
    """The row called ``name``. Raises UsageError that lists the names there are."""
    for row in FRAMEWORKS:
        if row.name == name:
            return row
    names = ", ".join(row.name for row in FRAMEWORKS)
    raise UsageError(f"no framework is called {name!r}; there are {names}")


def chosen(only: Iterable[str] | None = None) -> tuple[Framework, ...]:
    """The rows to act on: all that are not opt-in, or exactly those named. Raises UsageError for an unknown name."""
    if only is None:
        return tuple(row for row in FRAMEWORKS if not row.opt_in)
    return tuple(framework(name) for name in only)


def environment(root: str, only: Iterable[str] | None = None) -> dict[str, str]:
    """Everything to set so that each framework keeps its cache under ``root``, an absolute directory.

    This is what the table says, whatever is set already: what to leave alone is for
    ``launch`` to decide.
    """
    root = root.rstrip("/")
    wanted: dict[str, str] = {}
    for row in chosen(only):
        for variable in row.variables:
            wanted[variable.name] = f"{root}/{variable.path}"
        for setting in row.settings:
            wanted[setting.name] = setting.value
    return wanted


def owner(path: str) -> tuple[Framework, str] | None:
    """Whose file ``path`` is, relative to the root, and its path in that framework's directory; None if nobody's."""
    directory, _, inside = path.partition("/")
    for row in FRAMEWORKS:
        if row.directory == directory and inside:
            return row, inside
    return None


def describe(only: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """The rows as plain data, for ``--json`` and for the document; opt-in rows too."""
    return [row.columns() for row in (FRAMEWORKS if only is None else chosen(only))]
