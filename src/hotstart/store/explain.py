"""Why a key missed: which fields differ from the nearest entry."""

from __future__ import annotations

from itertools import islice

from ..keys.key import show_field
from . import files, gc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..keys.key import Key
    from .eviction import Room
    from .local import LocalStore

#: How many of the newest entries of the same kind and name are compared.
_COMPARED = 64

#: How many entries are looked at where there is no index to ask.
_WALKED = 20_000


class Explanation:
    """What ``Cache.explain`` found. ``str()`` of it is a sentence.

    ``status``   ``hit``, ``changed`` (an entry differs in some fields) or ``never seen``
    ``nearest``  digest of the entry that was compared
    ``changed``  field → (value in that entry, value asked for); None where there is none
    """

    __slots__ = ("changed", "kind", "name", "nearest", "status")

    def __init__(self, key: Key, status: str, nearest: str = "") -> None:
        self.kind = key.kind
        self.name = key.name
        self.status = status
        self.nearest = nearest
        self.changed: dict[str, tuple[str | None, str | None]] = {}

    def __str__(self) -> str:
        what = f"{self.kind} {self.name}".strip()
        if self.status != "changed":
            return f"{what}: {self.status}"
        parts = [f"{label} {old or 'absent'} → {new or 'absent'}" for label, (old, new) in self.changed.items()]
        return f"{what}: " + "; ".join(parts)

    def __repr__(self) -> str:
        return f"<Explanation {self}>"


def explain(store: LocalStore | None, key: Key) -> Explanation:
    """Compare with the nearest entry of the same kind and name: fewest fields differing, newest first."""
    if store is None:
        return Explanation(key, "never seen")
    if store.contains(key.digest):
        return Explanation(key, "hit", key.digest)
    found: list[bytes] = []

    def look(room: Room) -> None:
        found.extend(room.index.named(key.kind, key.name, _COMPARED))

    if gc.turn(store, look) is None:
        found = _walk(store, key)
    wanted = key.fields()
    best = None
    for digest in found:
        fields = store.upkeep.fields(digest.hex())
        if fields is None:
            continue
        differing = [label for label in sorted({*wanted, *fields}) if wanted.get(label) != fields.get(label)]
        if best is None or len(differing) < len(best[1]):
            best = (digest.hex(), differing, fields)
    if best is None:
        return Explanation(key, "never seen")
    nearest, differing, fields = best
    answer = Explanation(key, "changed", nearest)
    for label in differing:
        answer.changed[label] = _shown(fields.get(label)), _shown(wanted.get(label))
    return answer


def _walk(store: LocalStore, key: Key) -> list[bytes]:
    """Entries of the same kind and name without an index: for a store that is read-only."""
    found = []
    for digest, path in islice(files.walk(f"{store.root}/entries", 1), _WALKED):
        put = store.upkeep.describe(digest, path)
        if put is not None and (put.kind, put.name) == (key.kind, key.name):
            found.append((put.created, put.digest))
    found.sort(reverse=True)
    return [digest for _, digest in found[:_COMPARED]]


def _shown(token: bytes | None) -> str | None:
    return show_field(token) if token is not None else None
