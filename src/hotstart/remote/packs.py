"""Packs: many entries in one object, because an object store has no batch get and each request costs a round trip.

    pack       sealed(index) member*          what = "pack", key = BLAKE3 of the index, which is its name too
    index      row*
    row        digest[32] offset:u64 length:u64 check[64] size:u64 encoding:u8
    check      BLAKE3[32] SHA-256[32]         of the member as it travels; a reader compares one of them
    member     an entry as wire packs it; offset counts from the first member

    manifest   sealed(list)                   what = "workload", key = its name
    list       canonical mapping: name, packs, singles; a pack is id, size, its seal and its index; packed with zstd

The index is signed and holds the digests of every member, so a member is checked by
itself: one ranged read brings any run of them. The manifest repeats seals and indexes, so
that whoever starts a workload knows after one request what is missing and where it is,
and who made each pack: a manifest by one key lists packs of others, and vouches for none.
"""

from __future__ import annotations

import struct

from ..keys.digest import decode, encode
from ..trust.checks import check_of, matches
from ..trust.seal import RejectedError, Sealed, digest, seal
from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..store.entry import Entry
    from ..trust.seal import Bytes, Trust
    from ..trust.signing import SigningKey

#: A pack is never larger, head and index included. Large enough that requests do not count, small enough to retry.
LARGEST_PACK = 64 << 20

#: Members together; the rest is for head and index.
_LARGEST_MEMBERS = LARGEST_PACK - (2 << 20)
_MOST_MEMBERS = 20_000

#: A manifest unpacked: rows for about half a million entries.
LARGEST_MANIFEST = 64 << 20

_ROW = struct.Struct("<32sQQ64sQB")


class Row:
    """Where in a pack an entry lies, and what it must look like there."""

    __slots__ = ("check", "digest", "encoding", "length", "offset", "size")

    def __init__(self, digest: str, offset: int, length: int, check: bytes, size: int, encoding: int) -> None:
        self.digest = digest
        self.offset = offset
        self.length = length
        self.check = check
        self.size = size
        self.encoding = encoding

    def open(self, packed: Bytes, scope: str, signer: str, limit: int) -> Entry:
        """The entry, its bytes checked against the signed index. Raises RejectedError."""
        if len(packed) != self.length or not matches(packed, self.check):
            raise RejectedError("its bytes are not those it was signed for", "payload")
        return wire.read_entry(wire.unpack(packed, self.encoding, self.size, limit), self.digest, scope, signer)


class Pack:
    """One pack as a manifest lists it: ``head`` is its seal, ``size`` that of the whole object."""

    __slots__ = ("head", "id", "index", "size")

    def __init__(self, id: str, size: int, head: bytes, index: bytes) -> None:
        self.id = id
        self.size = size
        self.head = head
        self.index = index

    @property
    def start(self) -> int:
        """Where its members begin."""
        return len(self.head) + len(self.index)

    def signer(self, scope: str, trust: Trust) -> str:
        """The id of the key that sealed it; empty where nobody did and that is allowed. Raises RejectedError."""
        sealed = Sealed(self.head)
        if sealed.at != len(self.head):
            raise RejectedError("the seal of a pack is cut", "malformed")
        sealed.check("pack", self.id, scope, trust)
        sealed.check_payload(self.index)
        return sealed.statement.producer  # "" unless the signature was checked, whatever it said

    def rows(self) -> list[Row]:
        """In the order in which they lie. Raises RejectedError for an index that makes no sense."""
        rows = []
        end = 0
        if len(self.index) % _ROW.size or len(self.index) > _MOST_MEMBERS * _ROW.size:
            raise RejectedError("the index of a pack is cut", "malformed")
        for raw, offset, length, check, size, encoding in _ROW.iter_unpack(self.index):
            if offset != end:
                raise RejectedError("the members of a pack do not follow each other", "malformed")
            end = offset + length
            rows.append(Row(raw.hex(), offset, length, check, size, encoding))
        if self.start + end != self.size:
            raise RejectedError("a pack is not as long as its index says", "malformed")
        return rows


class Member:
    """An entry as a pack holds it: its bytes, how to unpack them to ``size``, and the digests of it all."""

    __slots__ = ("check", "encoding", "packed", "size")

    def __init__(self, entry: Entry) -> None:
        self.packed, self.encoding, self.size = wire.pack_entry(entry)
        self.check = check_of(self.packed)


def build(
    entries: Iterable[tuple[str, Member]],
    scope: str,
    signer: SigningKey | None,
    max_value: int | None = None,
) -> Iterator[tuple[Pack, bytes]]:
    """Packs of these, given with the digests of their keys, each with the object to put.

    ``max_value`` is the largest that the remote takes, where that is less than a pack.
    """
    most = _LARGEST_MEMBERS if max_value is None else min(_LARGEST_MEMBERS, max_value // 2)
    number = _MOST_MEMBERS if max_value is None else max(1, min(_MOST_MEMBERS, max_value // (4 * _ROW.size)))
    rows: list[bytes] = []
    members: list[bytes] = []
    filled = 0
    for key, member in entries:
        packed = member.packed
        if rows and (filled + len(packed) > most or len(rows) >= number):
            yield _finish(rows, members, scope, signer)
            rows, members, filled = [], [], 0
        rows.append(_ROW.pack(bytes.fromhex(key), filled, len(packed), member.check, member.size, member.encoding))
        members.append(packed)
        filled += len(packed)
    if rows:
        yield _finish(rows, members, scope, signer)


def _finish(rows: list[bytes], members: list[bytes], scope: str, signer: SigningKey | None) -> tuple[Pack, bytes]:
    index = b"".join(rows)
    name = digest(index).hex()
    head = seal("pack", name, scope, index, encoding=wire.RAW, size=len(index), signer=signer)
    whole = b"".join((head, index, *members))
    return Pack(name, len(whole), head, index), whole


def fits(packed: bytes) -> bool:
    """Whether a pack can hold it; what is larger travels alone."""
    return len(packed) <= _LARGEST_MEMBERS


class Manifest:
    """What a named workload consists of."""

    __slots__ = ("name", "packs", "singles")

    def __init__(self, name: str, packs: list[Pack], singles: list[str]) -> None:
        self.name = name
        self.packs = packs
        #: Entries that are too large for a pack and lie alone.
        self.singles = singles

    def seal(self, scope: str, signer: SigningKey | None) -> bytes:
        body = encode(
            {
                "name": self.name,
                "packs": tuple((pack.id, pack.size, pack.head, pack.index) for pack in self.packs),
                "singles": tuple(self.singles),
            }
        )
        packed: bytes = wire.zstd().compress(body)
        return seal("workload", self.name, scope, packed, encoding=wire.ZSTD, size=len(body), signer=signer) + packed

    @classmethod
    def read(cls, body: bytes, name: str) -> Manifest:
        """Raises RejectedError. The seals of its packs are not checked yet."""
        try:
            said = decode(body)
            if set(said) != {"name", "packs", "singles"} or said["name"] != name:
                raise ValueError("malformed data: not the manifest of this workload")
            packs = [Pack(*row) for row in said["packs"]]
            for pack in packs:
                kinds = (type(pack.id), type(pack.size), type(pack.head), type(pack.index))
                if kinds != (str, int, bytes, bytes) or not _is_digest(pack.id) or not 0 < pack.size <= LARGEST_PACK:
                    raise ValueError("malformed data: a pack that cannot be")
            singles = list(said["singles"])
            if not all(map(_is_digest, singles)):
                raise ValueError("malformed data: a digest that cannot be")
        except (ValueError, TypeError) as error:
            raise RejectedError(str(error), "malformed") from None
        return cls(name, packs, singles)


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and not text.strip("0123456789abcdef")
