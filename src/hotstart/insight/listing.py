"""The entries of a store as rows: for ``ls`` and for the sums of ``stats``.

Read from the files and not from the index, which is locked by whoever uses it: a listing
must neither wait for writers nor hold them up. One small read an entry.
"""

from __future__ import annotations

from ..store import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..store.ledger import Put
    from ..store.local import LocalStore

#: Entries that hold what a framework wrote in its directory; their name is the framework's.
CAPTURE = "capture"


def entries(store: LocalStore, step: Callable[[], None] = lambda: None) -> Iterator[Put]:
    """What each entry's file says of it; ``step`` is called for each. One that is damaged has no kind."""
    if store.unreadable:
        return
    for digest, path in files.walk(f"{store.root}/entries", 1):
        step()
        try:
            put = store.upkeep.describe(digest, path)
        except OSError as error:
            store.counters.error("read", error)
            continue
        if put is not None:
            yield put


def framework_of(put: Put) -> str:
    """Whose entry it is: ``torch`` for what was captured of torch, else the compiler its kind names."""
    return put.name if put.kind == CAPTURE else put.kind.partition(" ")[0] or "damaged"


class Held:
    """What a store holds of one framework. A blob that several entries share counts once."""

    __slots__ = ("_blobs", "bytes", "cost", "entries")

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0
        #: Seconds it would take to compile all of it again.
        self.cost = 0.0
        self._blobs: set[bytes] = set()

    def add(self, put: Put) -> None:
        self.entries += 1
        self.cost += put.cost
        self.bytes += put.size
        for address, size in put.blobs:
            if address not in self._blobs:
                self._blobs.add(address)
                self.bytes += size


def by_framework(store: LocalStore, step: Callable[[], None] = lambda: None) -> dict[str, Held]:
    found: dict[str, Held] = {}
    for put in entries(store, step):
        found.setdefault(framework_of(put), Held()).add(put)
    return found


def details(store: LocalStore, digest: str) -> dict[str, Any]:
    """Provenance and metadata of one entry, without its artifacts; empty when they cannot be had."""
    from ..store.entry import DamagedError, OtherVersionError, Summary

    try:
        fd = files.open(store.path(digest), files.READ)
        try:
            found = Summary(fd)
            return {"provenance": found.described("provenance"), "meta": found.described("meta")}
        finally:
            files.close_quietly(fd)
    except (OSError, DamagedError, OtherVersionError, ValueError):
        return {}
