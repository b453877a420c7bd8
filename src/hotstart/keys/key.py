"""``Key``: labelled fields that say what was compiled, by what, for what."""

from __future__ import annotations

from blake3 import blake3
from xxhash import xxh3_128_hexdigest

from ..errors import UncacheableError, UsageError
from .digest import ENCODERS, decode, encode, encode_str, labelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Raised when the meaning of a key changes; entries under older keys become misses.
KEY_VERSION = 1

#: How an encoded ``DeviceClass`` begins.
_DEVICE = labelled("hotstart.DeviceClass", b"")

#: A field whose encoding is at most this long is kept whole in the entry.
_SHORT_FIELD = 256

#: How the encoding of ``bytes`` of each such length begins; formatting one costs more than the look-up.
_LENGTHS = [b"b%d:" % length for length in range(_SHORT_FIELD + 1)]

#: Tokens of long fields begin with a tag that no encoding begins with.
_DIGESTED = b"#"


class Key:
    """What one compile depends on: ``Key("nvrtc", source=src, arch="sm_90")``.

    ``kind`` says which compiler's entries these are. The fields may hold whatever
    ``keys.digest`` gives a form; order of fields, of mappings and of sets does not
    matter. A field called ``name`` also names the entry to people: ``explain``
    compares entries of the same kind and name.

    Raises UncacheableError naming the field that has no canonical form. A key is
    not to be changed; two keys are equal when their digests are.
    """

    __slots__ = ("_parts", "digest", "kind", "name")

    kind: str
    name: str
    #: 64 hexadecimal digits that file the entry.
    digest: str

    def __init__(self, kind: str, /, **fields: object) -> None:
        parts = [_KINDS.get(kind) or _known_kind(kind)]
        add = parts.append
        label = ""
        try:
            for label, encoded in _SHAPES.get(names := tuple(fields)) or _shape(names):
                value = fields[label]
                add(encoded)
                # encode() spelled out: a call a field would be a tenth of the cost of a key.
                add(ENCODERS.get(type(value), encode)(value, 0))
        except UncacheableError as error:
            raise UncacheableError(error.reason, label + error.field) from None
        name = fields.get("name")
        self.kind = kind
        self.name = name if type(name) is str else ""
        self.digest = blake3(b"".join(parts)).digest().hex()
        self._parts = parts

    def fields(self) -> dict[str, bytes]:
        """For each field a token that is equal when the field is: what an entry keeps to explain a miss.

        A short field is its own token and can be shown again; of a long one the
        digest is kept. Computed here and not in ``__init__``: a lookup needs only
        the digest of the whole.
        """
        return decode(self.encoded_fields())  # type: ignore[no-any-return]

    def encoded_fields(self) -> bytes:
        """``fields`` encoded, made from the parts that were hashed: the kind, then label and value in turn."""
        parts = iter(self._parts)
        next(parts)
        pieces = [b"{%d:" % (len(self._parts) // 2)]
        add = pieces.append
        for label in parts:
            add(label)
            raw = next(parts)
            if len(raw) > _SHORT_FIELD:
                raw = _digest_token(raw)
            add(_LENGTHS[len(raw)])
            add(raw)
        return b"".join(pieces)

    @property
    def portable(self) -> bool:
        """Whether a field says ``DeviceClass.cuda_any``: such entries hold no machine code."""
        for raw in self._parts[2::2]:  # noqa: SIM110  # a generator costs more than the look
            if raw.startswith(_DEVICE) and b":cuda/any/" in raw:
                return True
        return False

    __hotstart_label__ = "hotstart.Key"

    def __hotstart_key__(self) -> str:
        return self.digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        fields = ", ".join(f"{label}={show_field(token)}" for label, token in self.fields().items())
        return f"<Key {self.kind} {self.digest[:12]}… {fields}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.kind, self.name, self.digest, self._parts)


#: Labels in order, encoded, by the labels as they were written: the same few in every key of one kind.
_SHAPES: dict[tuple[str, ...], list[tuple[str, bytes]]] = {}


def _shape(names: tuple[str, ...]) -> list[tuple[str, bytes]]:
    if len(_SHAPES) >= 256:
        _SHAPES.clear()
    shape = _SHAPES[names] = [(label, encode_str(label)) for label in sorted(names)]
    return shape


#: How the encoding of a key of each kind begins. Kinds are few: one per compiler.
_KINDS: dict[str, bytes] = {}


def _known_kind(kind: str) -> bytes:
    if type(kind) is not str or not kind or not kind.isprintable():
        raise UsageError(f"the kind of a key is a short printable string, not {kind!r}")
    if len(_KINDS) >= 256:  # somebody generates them; forgetting costs a microsecond
        _KINDS.clear()
    prefix = _KINDS[kind] = b"hotstart key %d\n%b" % (KEY_VERSION, encode_str(kind))
    return prefix


def _restore(cls: type[Key], kind: str, name: str, digest: str, parts: list[bytes]) -> Key:
    key = object.__new__(cls)
    key.kind, key.name, key.digest, key._parts = kind, name, digest, parts
    return key


def _digest_token(raw: bytes) -> bytes:
    # Only compared with tokens of other entries, to tell people what changed: a checksum does.
    return b"%b%b %d" % (_DIGESTED, xxh3_128_hexdigest(raw).encode(), len(raw))


def show_field(token: bytes) -> str:
    """A field's token as a person would write the value; of long ones digest and length."""
    if token.startswith(_DIGESTED):
        digest, length = token[1:].decode().split(" ")
        return f"{digest[:12]}… ({length} bytes)"
    try:
        return repr(decode(token))
    except ValueError:
        # Labelled objects do not decode; their label and content are readable enough.
        return token.decode("utf-8", "replace")
