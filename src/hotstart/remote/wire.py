"""An entry on the wire: all of it in one piece, so that it is there or not, and one round trip brings it.

    body     head kind name about provenance row* artifacts
    head     created:u64 cost:f64 and the lengths of kind:u16 name:u16 about:u32 provenance:u32, rows:u32
    about    what the entry says of itself, up to its provenance, which is kept apart
    row      name-length:u16 size:u64 name
    packed   the body as it is (encoding 0) or one zstd frame of it (encoding 1)

Data only: nothing in it is run or is a path. What comes from outside is bounded before
it is unpacked, and every name is checked before anything is filed under it.
"""

from __future__ import annotations

import struct

from ..errors import ArtifactNameError
from ..keys.digest import decode, encode
from ..store.entry import SCOPE as SCOPE
from ..store.entry import SIGNER as SIGNER
from ..store.entry import Entry, check_name, from_remote
from ..trust.seal import RejectedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..store.entry import BytesLike
    from ..trust.seal import Bytes, Statement

RAW, ZSTD = 0, 1

#: An entry larger than this is neither published nor taken.
LARGEST_ENTRY = 1 << 30

_HEAD = struct.Struct("<QdHHIII")
_ROW = struct.Struct("<HQ")
_MOST_ROWS = 100_000

#: Compressing what is shorter, or what shrinks by less, costs more than it saves.
_WORTH_FROM = 512
_WORTH_IT = 0.9
_LEVEL = 3

#: What an entry says of itself, as ``Draft`` writes it: encoded, and cut at its values.
_META = b"{5:" + encode("meta")
_KIND, _NAME, _FIELDS, _PROVENANCE = map(encode, ("kind", "name", "fields", "provenance"))
_NOTHING = encode({})


def pack_entry(entry: Entry) -> tuple[bytes, int, int]:
    """(packed, encoding, size of the body). Raises ValueError for an entry whose description is not as we write it."""
    provenance = encode(entry.provenance)
    about = entry.about()
    if not about.endswith(provenance):
        raise ValueError("the provenance does not come last")
    about = about[: -len(provenance)]
    kind, name = _raw(entry.kind), _raw(entry.name)
    items = entry.items()
    pieces = [
        _HEAD.pack(entry.created, entry.cost, len(kind), len(name), len(about), len(provenance), len(items)),
        *(kind, name, about, provenance),
    ]
    for artifact, data in items:
        raw = _raw(artifact)
        pieces += (_ROW.pack(len(raw), len(data)), raw)
    body = b"".join((*pieces, *(data for _, data in items)))
    if len(body) >= _WORTH_FROM:
        packed = zstd().compress(body, _LEVEL)
        if len(packed) < len(body) * _WORTH_IT:
            return packed, ZSTD, len(body)
    return body, RAW, len(body)


def unpack(packed: Bytes, encoding: int, size: int, limit: int = LARGEST_ENTRY) -> Bytes:
    """The body, exactly ``size`` bytes of it; not one more is ever made. Raises RejectedError.

    One that travelled as it is comes back as it is, not copied: who hands in what may still change copies first.
    """
    if not 0 <= size <= limit:
        raise RejectedError(f"it says that it holds {size} bytes", "oversize")
    if encoding == RAW:
        if len(packed) != size:
            raise RejectedError("it is not as long as it says", "payload")
        return packed
    if encoding != ZSTD:
        raise RejectedError(f"encoding {encoding} is not known", "other_version")
    module = zstd()
    unpacker = module.ZstdDecompressor()
    try:
        # One byte more than it may be: a frame that holds more has not ended by then.
        body: bytes = unpacker.decompress(packed, size + 1)
    except (module.ZstdError, EOFError, MemoryError) as error:
        raise RejectedError(f"it cannot be unpacked: {error}", "payload") from None
    if len(body) > size or (not unpacker.eof and not unpacker.needs_input):
        raise RejectedError("it unpacks to more than it says", "bomb")
    if len(body) != size or not unpacker.eof or unpacker.unused_data:
        raise RejectedError("it is not one frame of the length it says", "payload")
    return body


class Received(Entry):
    """An entry from a remote. Its kind and name came beside it: no need to take its description apart to file it.

    Its artifacts are cut out of the body as it came when somebody asks for them: most only pass through to the store.
    """

    __slots__ = ("beside",)

    beside: tuple[str, str]

    def __getitem__(self, name: str) -> bytes:
        value = self._table[name]
        if type(value) is not bytes:
            value = self._table[name] = bytes(self._inline[value[0] : value[1]])
        return value

    def parts(self) -> dict[str, BytesLike]:
        body = memoryview(self._inline)
        return {
            name: value if type(value) is bytes else body[value[0] : value[1]] for name, value in self._table.items()
        }

    def at(self, tier: str) -> Entry:
        parts: dict[str, bytes | tuple[int, int]] = dict(self.items())
        return Entry(self.digest, tier, self.cost, self.created, self.size, parts, b"", self._about)

    @property
    def kind(self) -> str:
        return self.beside[0]

    @property
    def name(self) -> str:
        return self.beside[1]


def read_entry(body: Bytes, digest: str, scope: str, signer: str) -> Entry:
    """The entry in a body. Raises RejectedError for anything that we would not have written.

    Its provenance says from now on who signed it and for which scope (``signer`` is "" when nobody's
    signature was checked): what ``ls --long`` shows, what revoking a key goes by, and why it
    is not published again as one's own.
    """
    try:
        created, cost, kind, name, about, provenance, rows = _HEAD.unpack_from(body)
        ends = [_HEAD.size]
        for length in (kind, name, about, provenance):
            ends.append(ends[-1] + length)
        if ends[-1] > len(body) or rows > _MOST_ROWS:
            raise ValueError("malformed data: it ends too early")
        beside = _text(body[ends[0] : ends[1]]), _text(body[ends[1] : ends[2]])
        said = bytes(body[ends[2] : ends[3]])
        # Whoever signed it: a trusted key says whose code is run here, not that this code wrote the bytes. With a
        # provenance of its own in ``about`` it would pass for made here, and be signed again by us.
        _check_about(said, *beside)
        described = said + _with_signer(bytes(body[ends[3] : ends[4]]), scope, signer)
        table = _table(body, ends[4], rows)
        received = Received(digest, "remote", cost, created, len(body), table, body, described)
        received.beside = beside
    except ArtifactNameError as error:
        raise RejectedError(str(error), "name") from None
    except (ValueError, TypeError, struct.error) as error:
        raise RejectedError(str(error), "malformed") from None
    if not 0 <= cost < float("inf") or not 0 <= created < 1 << 63:
        raise RejectedError("its cost or time cannot be", "malformed")
    return received


def _table(body: Bytes, at: int, rows: int) -> dict[str, bytes | tuple[int, int]]:
    sizes: dict[str, int] = {}
    for _ in range(rows):
        length, size = _ROW.unpack_from(body, at)
        at += _ROW.size + length
        sizes[check_name(_text(body[at - length : at]))] = size
    if len(sizes) != rows:
        raise ValueError("malformed data: two artifacts of one name")
    table: dict[str, bytes | tuple[int, int]] = {}
    for name, size in sizes.items():
        table[name] = (at, at + size)
        at += size
    if at != len(body):
        raise ValueError("malformed data: its parts do not add up")
    return table


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(raw: Bytes) -> str:
    return str(raw, "utf-8", "surrogatepass")


def _check_about(about: bytes, kind: str, name: str) -> None:
    """That it is exactly what ``Draft`` would have written, up to the provenance, for this kind and name."""
    between = b"".join((_KIND, encode(kind), _NAME, encode(name), _FIELDS))
    meta = _NOTHING
    if not about.startswith(_META + meta + between):  # else nothing need be decoded to know what it says so far
        said = decode(about + _NOTHING)
        if not isinstance(said, dict) or type(said.get("meta")) is not dict:
            raise ValueError("malformed data: the description does not say what it should")
        meta = encode(said["meta"])
    start = b"".join((_META, meta, between))
    if not about.startswith(start) or not about.endswith(_PROVENANCE):
        raise ValueError("malformed data: the description does not say what it should, and nothing else")
    raw = about[len(start) : -len(_PROVENANCE)]
    fields = decode(raw)
    if type(fields) is not dict or not all(
        type(each) is str and type(token) is bytes for each, token in fields.items()
    ):
        raise ValueError("malformed data: the fields of its key are not tokens")
    # Not ``encode(fields)``: a key has its own order, by label.
    pieces = [encode(each) + encode(fields[each]) for each in sorted(fields)]
    if raw != b"{%d:%b" % (len(pieces), b"".join(pieces)):
        raise ValueError("malformed data: the fields of its key are not in their one form")


def _with_signer(provenance: bytes, scope: str, signer: str) -> bytes:
    """A writer makes all its entries with the same provenance: worked out once for each."""
    known = _provenances.get((provenance, scope, signer))
    if known is None:
        said = decode(provenance)
        if not isinstance(said, dict):
            raise ValueError("malformed data: the provenance is not a mapping")
        known = encode(from_remote(said, signer, scope))
        if len(_provenances) >= 64:
            _provenances.clear()
        _provenances[provenance, scope, signer] = known
    return known


_provenances: dict[tuple[bytes, str, str], bytes] = {}


def open_statement(statement: Statement, payload: Bytes, limit: int = LARGEST_ENTRY) -> Entry:
    """The entry of a sealed object whose statement and payload were checked. Raises RejectedError."""
    body = unpack(payload, statement.encoding, statement.size, limit)
    return read_entry(body, statement.key, statement.scope, statement.producer)


def came_from_a_remote(entry: Entry) -> bool:
    """Whether it was not made here: then it is not ours to sign."""
    return entry.origin() is not None


_zstd: Any = None


def zstd() -> Any:
    """In the standard library from 3.14 on, a backport before. Kept: looking for what is not there costs each time."""
    global _zstd
    if _zstd is None:
        try:
            from compression import zstd as module
        except ImportError:
            from backports import zstd as module
        _zstd = module
    return _zstd
