"""Two keys compared field by field, in words: "option -O 2 → 3", "arch sm_80 → sm_90", "source was edited".

An entry keeps a token for each field of its key: the value itself where it is short, else
its digest and length (``keys.key``). What is short is shown; of what is not, people learn
which field it was.
"""

from __future__ import annotations

from ..keys.digest import decode
from ..keys.key import show_field
from ..store import gc
from .words import shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..store.eviction import Room
    from ..store.local import LocalStore

    Fields = Mapping[str, bytes]

_SHOWN = 60

#: How many of the newest entries of the same kind and name are compared.
COMPARED = 64

#: Fields that hold text, of which nobody wants to see the digest.
_TEXTS = {
    "source": "source was edited",
    "source_hash": "source was edited",
    "code": "code was edited",
    "function": "function or what it calls was edited",
    "fingerprint": "function or what it calls was edited",
    "headers": "a header that it includes was edited, added or removed",
    "memory": "a header given in memory was changed",
    "toolchain": "the compiler is another: its release, its files, or a variable that it reads",
    "options_hash": "options were changed",
}

#: The same for fields that mean something only in keys of one kind.
_TEXTS_OF = {
    ("triton", "triton"): "Triton's own key changed: kernel source, signature, options, Triton or ptxas",
    ("torch", "code"): "the model's code, or what it calls, was edited",
    ("torch", "patched"): "a method or function of a library was replaced",
    ("torch", "tensors"): "parameters or buffers have other names, shapes, types or devices",
    ("torch", "inputs"): "inputs have other shapes, strides, types or devices",
    ("torch", "structure"): "arguments are nested in another way, or other values were passed",
    ("torch", "classes"): "a class among the arguments was edited",
    ("torch", "same"): "other arguments are one and the same tensor",
    ("torch", "order"): "parameters, buffers or arguments come in another order",
    ("torch", "settings"): "grad mode, autocast, precision, threads or another setting of torch differs",
    ("torch", "environment"): "a TORCH* variable differs",
    ("torch", "config"): "Inductor's configuration differs",
    ("torch", "options"): "mode or options of torch.compile differ",
}

_ABSENT = object()


def difference(old: Fields, new: Fields, kind: str = "") -> dict[str, str]:
    """For each field that differs a sentence; the name of the field is the key."""
    return _compare(old, new, kind)[0]


def _compare(old: Fields, new: Fields, kind: str) -> tuple[dict[str, str], int]:
    """The sentences, and how many things differ: two options are further away than one."""
    found, weight = {}, 0
    for label in sorted({*old, *new}):
        was, now = old.get(label), new.get(label)
        if was != now:
            found[label], parts = _sentence(kind, label, was, now)
            weight += parts
    if "memory" in found:
        found.pop("headers", None)  # they are part of what it includes, and named themselves
    elif "headers" in found and "options" in found:
        found["headers"] = "what it includes differs, which may follow from the options"
    return found, weight


def _sentence(kind: str, label: str, was: bytes | None, now: bytes | None) -> tuple[str, int]:
    before, after = _value(was), _value(now)
    if label == "toolchain" and isinstance(before, tuple) and isinstance(after, tuple) and before[1] != after[1]:
        return f"{before[0]} {before[1]} → {after[1]}", 1
    if before is not None and after is not None:
        pairs = _mapping(before), _mapping(after)
        if pairs[0] is not None and pairs[1] is not None:
            return _items(label, pairs[0], pairs[1])
        if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
            return _members(label, before, after)
    text = _TEXTS_OF.get((kind, label)) or _TEXTS.get(label)
    if text and was is not None and now is not None:
        return text + _lengths(was, now), 1
    if isinstance(before, str) and isinstance(after, str):
        return _strings(label, before, after), 1
    return f"{label} {_shown(was)} → {_shown(now)}", 1


def _strings(label: str, before: str, after: str) -> str:
    """Two strings; of the identity of a distribution (name, version, digest) the version is enough."""
    was, now = (value.removeprefix(f"{label} ").split(" ") for value in (before, after))
    if len(was) == len(now) == 2 and all(len(words[1]) >= 32 for words in (was, now)):
        return f"{label} {was[0]} is another build" if was[0] == now[0] else f"{label} {was[0]} → {now[0]}"
    return f"{label} {_plain(before)} → {_plain(after)}"


def _value(token: bytes | None) -> Any:
    """The value of a short field, of a labelled one its content; None where only a digest is left."""
    if token is None or token[:1] == b"#":
        return None
    try:
        if token[:2] == b"os":
            length, _, rest = token[2:].partition(b":")
            return decode(rest[int(length) :])
        return decode(token)
    except ValueError:
        return None


def _mapping(value: Any) -> dict[str, Any] | None:
    """A mapping, or pairs of a name and something, as a mapping; None for anything else."""
    if isinstance(value, dict):
        return {str(name): item for name, item in value.items()}
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], str) for item in value)
    ):
        return dict(value)
    return None


def _items(label: str, was: dict[str, Any], now: dict[str, Any]) -> tuple[str, int]:
    parts = []
    for name in sorted({*was, *now}):
        before, after = was.get(name, _ABSENT), now.get(name, _ABSENT)
        if before is _ABSENT:
            parts.append(f"{name}{_operand(after)} was added")
        elif after is _ABSENT:
            parts.append(f"{name}{_operand(before)} was left out")
        elif before != after:
            parts.append(f"{name} {_plain(before)} → {_plain(after)}")
    return (f"{label}: {', '.join(parts)}", len(parts)) if parts else (f"{label}: their order", 1)


def _members(label: str, was: Any, now: Any) -> tuple[str, int]:
    gone = [item for item in was if item not in now and _plain(item)]
    added = [item for item in now if item not in was and _plain(item)]
    if len(gone) == 1 and len(added) == 1:
        return f"{label} {_plain(gone[0])} → {_plain(added[0])}", 1
    parts = [f"{_plain(item)} was added" for item in added] + [f"{_plain(item)} was left out" for item in gone]
    return (f"{label}: {', '.join(parts)}", len(parts)) if parts else (f"{label}: their order", 1)


def _operand(value: Any) -> str:
    text = _plain(value)
    return f" {text}" if text else ""


def _plain(value: Any) -> str:
    """As a person would write it: strings without quotes, sequences with spaces."""
    if isinstance(value, str):
        return shorten(value, _SHOWN)
    if isinstance(value, (list, tuple)):
        return shorten(" ".join(_plain(item) for item in value), _SHOWN)
    return shorten(repr(value), _SHOWN)


def _shown(token: bytes | None) -> str:
    if token is None:
        return "absent"
    value = _value(token)
    return _plain(value) if value is not None else shorten(show_field(token), _SHOWN)


def _lengths(was: bytes, now: bytes) -> str:
    sizes = [int(token.rpartition(b" ")[2]) for token in (was, now) if token[:1] == b"#" and b" " in token]
    return f" ({sizes[0]:,} → {sizes[1]:,} bytes)" if len(sizes) == 2 and sizes[0] != sizes[1] else ""


# -- the nearest entry -------------------------------------------------------------------


def nearest(
    store: LocalStore, kind: str, name: str, fields: Fields, *, besides: str = "", before: int = 0
) -> tuple[str, dict[str, str]] | None:
    """The entry of the same kind and name with the fewest fields differing, and the differences in words.

    ``besides`` is the digest of an entry that does not count: itself. With ``before``, in
    nanoseconds, only what was made earlier counts. None when there is no such entry.
    """
    found: list[bytes] = []

    def look(room: Room) -> None:
        found.extend(room.index.named(kind, name, COMPARED))

    if gc.turn(store, look) is None:
        found = _walk(store, kind, name)
    best: tuple[str, dict[str, str]] | None = None
    least = 0
    for raw in found:
        digest = raw.hex()
        if digest == besides or (before and _created(store, digest) >= before):
            continue
        other = store.upkeep.fields(digest)
        if other is None:
            continue
        differing, weight = _compare(other, fields, kind)
        if best is None or weight < least:
            best, least = (digest, differing), weight
    return best


def _created(store: LocalStore, digest: str) -> int:
    try:
        put = store.upkeep.describe(digest, store.path(digest))
    except OSError:
        put = None
    return put.created if put is not None else 0


def _walk(store: LocalStore, kind: str, name: str) -> list[bytes]:
    """Without an index to ask: a store that is read-only."""
    from itertools import islice

    from ..store import files

    found = []
    for digest, path in islice(files.walk(f"{store.root}/entries", 1), 20_000):
        try:
            put = store.upkeep.describe(digest, path)
        except OSError:
            continue
        if put is not None and (put.kind, put.name) == (kind, name):
            found.append((put.created, put.digest))
    found.sort(reverse=True)
    return [digest for _, digest in found[:COMPARED]]
