"""Pins: one empty file per entry that must not be evicted, for all processes."""

from __future__ import annotations

from . import files
from .content import digest_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .local import LocalStore


def pin(store: LocalStore, digest: str) -> bool:
    """Keep the entry until it is unpinned; whether that is now so."""
    if store.unwritable:
        return False
    directory = f"{store.root}/pins"
    try:
        files.makedirs(directory)
        files.close(files.open(f"{directory}/{digest}", files.UPDATE, files.PRIVATE_FILE))
    except OSError as error:
        store.counters.error("pin", error)
        return False
    return True


def unpin(store: LocalStore, digest: str) -> bool:
    """Whether there was a pin and it is gone."""
    if store.unwritable:
        return False
    try:
        files.unlink(f"{store.root}/pins/{digest}")
    except OSError:
        return False
    return True


def pinned(store: LocalStore) -> set[bytes]:
    """OSError passes through: whoever cannot read the pins must not evict."""
    try:
        names = files.listdir(f"{store.root}/pins")
    except FileNotFoundError:
        return set()
    return {digest for name in names if (digest := digest_named(name)) is not None}
