"""What a workload may be called; a file of its own, because ``run --name`` asks before it starts anything."""

from __future__ import annotations

from zlib import crc32

from ..errors import UsageError

LONGEST = 128


def check_name(name: str) -> str:
    """``name`` if it can name a workload. Raises UsageError that says what to write instead."""
    if not name or len(name) > LONGEST or not name.isprintable() or name != name.strip():
        raise UsageError(f"a name is 1 to {LONGEST} printable characters, not {name[:200]!r}")
    if "/" in name or "\\" in name or name in (".", ".."):
        raise UsageError(f"a name has no slash, because names are used as directories: {name!r}")
    return name


def shared_name(name: str) -> str:
    """What the workload ``name`` is called in a remote: itself if that is one plain word.

    Else what is left of it, and a checksum that keeps "a b" and "a_b" apart.
    """
    plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign in "._-") else "_" for sign in name)
    if plain == name and name[:1].isalnum() and len(name) <= 100:
        return name
    return f"{plain.lstrip('._-')[:90] or 'workload'}-{crc32(name.encode('utf-8', 'surrogatepass')):08x}"
