"""What a store's directory holds, counted from outside.

The store's own accounts are what is being tested, so nothing of the store is
asked here: only names and sizes, as ``find`` would see them.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_HEX = frozenset("0123456789abcdef")


class Audit:
    """One look at a store.

    ``entries``    how many
    ``bytes``      of entries and blobs together: what the budget is about
    ``temporary``  files in ``tmp/`` and ``blobs/tmp/``, and their bytes in ``temporary_bytes``
    """

    __slots__ = ("bytes", "entries", "temporary", "temporary_bytes")

    def __init__(self, entries: int, bytes: int, temporary: list[str], temporary_bytes: int) -> None:
        self.entries = entries
        self.bytes = bytes
        self.temporary = temporary
        self.temporary_bytes = temporary_bytes

    def __repr__(self) -> str:
        return f"<Audit {self.entries} entries, {self.bytes} bytes, temporary {self.temporary}>"


def audit(root: str | os.PathLike[str]) -> Audit:
    """Count the store under ``root``; files that vanish meanwhile are passed over."""
    root = os.fspath(root)
    entries = [size for name, size in _files(f"{root}/entries") if _named(name, 1)]
    blobs = [size for name, size in _files(f"{root}/blobs") if _named(name, 2)]
    temporary = [(f"tmp/{name}", size) for name, size in _files(f"{root}/tmp")]
    temporary += [(f"blobs/tmp/{name}", size) for name, size in _files(f"{root}/blobs/tmp")]
    return Audit(
        len(entries), sum(entries) + sum(blobs), [name for name, _ in temporary], sum(size for _, size in temporary)
    )


def open_descriptors() -> set[str]:
    """What this process has open, as numbers with their targets, to be compared before and after.

    Empty where the system does not say (it needs ``/proc/self/fd`` or ``/dev/fd``).
    """
    found = set()
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            with os.scandir(directory) as items:
                numbers = [item.name for item in items]
        except OSError:
            continue
        for number in numbers:
            try:
                found.add(f"{number} {os.readlink(f'{directory}/{number}')}")
            except OSError:
                continue  # the descriptor the listing itself used
        break
    return found


def _files(directory: str, prefix: str = "") -> Iterator[tuple[str, int]]:
    try:
        with os.scandir(directory) as found:
            items = list(found)
    except OSError:
        return
    for item in items:
        try:
            if item.is_dir(follow_symlinks=False):
                yield from _files(item.path, f"{prefix}{item.name}/")
            else:
                yield f"{prefix}{item.name}", item.stat(follow_symlinks=False).st_size
        except OSError:
            continue


def _named(name: str, depth: int) -> bool:
    """Whether a path is two-digit directories and the rest of 64 digits: no temporary file, no stranger."""
    parts = name.split("/")
    digits = "".join(parts)
    return len(parts) == depth + 1 and len(digits) == 64 and _HEX.issuperset(digits)
