"""Sorts a framework's files into the units that its row describes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

    from .contract import Framework, Unit

#: Compiled patterns; a run asks for the same few of them for thousands of files.
_PATTERNS: dict[str, re.Pattern[str]] = {}


def pattern_of(text: str) -> re.Pattern[str]:
    """The compiled ``text``. ``re`` is imported here: a run that captures nothing never needs it."""
    known = _PATTERNS.get(text)
    if known is None:
        import re

        known = _PATTERNS[text] = re.compile(text, re.DOTALL)
    return known


def unit_of(framework: Framework, path: str) -> tuple[Unit, str] | None:
    """The kind of unit that the file at ``path`` is part of and the unit's name; None if the row knows no such file.

    ``path`` is relative to the framework's directory, with "/". Names are unique
    within one kind only. ``..`` and absolute paths belong to nothing.
    """
    if path.startswith("/") or ".." in path.split("/"):
        return None
    for unit in framework.units:
        pattern = pattern_of(unit.pattern)
        match = pattern.fullmatch(path)
        if match is not None:
            return unit, match["unit"] if "unit" in pattern.groupindex else ""
    return None
