"""The entries of one kind with their metadata, without reading what they hold: for whoever gives many of them back."""

from __future__ import annotations

from . import files, gc
from .content import digest_named
from .entry import DamagedError, Summary, origin_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .local import LocalStore

    Described = tuple[str, dict[str, Any], float, tuple[str, str] | None]


def described(store: LocalStore, kind: str) -> Iterator[Described]:
    """(digest, metadata, seconds it cost, ``Entry.origin``) of each entry of ``kind``; damaged ones are passed over.

    The index names them; a store that is not ours to write has no index to rely on, and
    the beginning of every entry is read.
    """
    for digest in _digests(store, kind):
        try:
            fd = files.open(store.path(digest), files.READ)
            try:
                summary = Summary(fd)
            finally:
                files.close_quietly(fd)
            if summary.described("kind") == kind:
                yield digest, summary.described("meta"), summary.cost, origin_in(summary.described("provenance"))
        except (OSError, DamagedError):
            continue  # evicted meanwhile, or damaged: whoever reads it finds out and counts


def _digests(store: LocalStore, kind: str) -> Iterator[str]:
    if store.unreadable:
        return
    found: list[bytes] = []
    if not store.unwritable and gc.turn(store, lambda room: found.extend(room.index.of_kind(kind))) is not None:
        for digest in found:
            yield digest.hex()
        return
    for digest_text, _ in files.walk(f"{store.root}/entries", 1):
        if digest_named(digest_text) is not None:
            yield digest_text
