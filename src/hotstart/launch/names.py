"""What a workload may be called; a file of its own, because ``run --name`` asks before it starts anything."""

from __future__ import annotations

from ..errors import UsageError

LONGEST = 128


def check_name(name: str) -> str:
    """``name`` if it can name a workload. Raises UsageError that says what to write instead."""
    if not name or len(name) > LONGEST or not name.isprintable() or name != name.strip():
        raise UsageError(f"a name is 1 to {LONGEST} printable characters, not {name[:200]!r}")
    if "/" in name or "\\" in name or name in (".", ".."):
        raise UsageError(f"a name has no slash, because names are used as directories: {name!r}")
    return name
