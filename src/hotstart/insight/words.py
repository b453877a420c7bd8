"""Numbers as people say them: sizes, durations, counts, how long ago."""

from __future__ import annotations

from ..store.sizes import show_size as size

__all__ = ["ago", "clock", "count", "duration", "shorten", "size"]


def count(number: int, one: str, many: str = "") -> str:
    """``1 entry``, ``2,048 entries``: the plural is ``one`` with an s unless given."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """``80 ms``, ``2.4 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``: two units at most."""
    if seconds < 0:
        return f"−{duration(-seconds)}"
    if seconds < 0.0005:
        return "0 s"
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for large, small, step, within in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= step:
            first, rest = whole // step, whole % step // within
            return f"{first:,} {large} {rest} {small}" if rest else f"{first:,} {large}"
    return f"{whole} s"


def ago(seconds: float) -> str:
    """``just now``, ``5 min ago``, ``3 d ago``; one unit is enough. What lies ahead is said so."""
    if seconds < -1:
        return f"in {_one_unit(-seconds)}"
    return "just now" if seconds < 10 else f"{_one_unit(seconds)} ago"


def _one_unit(seconds: float) -> str:
    for unit, step in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= step:
            return f"{int(seconds // step)} {unit}"
    return f"{int(seconds)} s"


def clock(when: float) -> str:
    """``2026-03-01 14:05:09``, here."""
    import time

    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    except (OverflowError, ValueError, OSError):
        return "?"  # a damaged or impossible time


def shorten(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters: the middle goes, since names differ at both ends."""
    if len(text) <= width:
        return text
    if width < 4:
        return text[:width]
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
