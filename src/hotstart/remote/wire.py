"""An entry on the wire: all of it in one piece, so that it is there or not, and one round trip brings it.

    body     header-length:u32 header artifacts
    header   canonical mapping: about (up to the provenance), provenance, cost, created, names, sizes
    packed   the body as it is (encoding 0) or one zstd frame of it (encoding 1)

Data only: nothing in it is run or is a path. What comes from outside is bounded before
it is unpacked, and every name is checked before anything is filed under it.
"""

from __future__ import annotations

import struct

from ..errors import ArtifactNameError
from ..keys.digest import decode, encode
from ..store.entry import Entry, check_name
from ..trust.seal import RejectedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..trust.seal import Bytes, Statement

RAW, ZSTD = 0, 1

#: An entry larger than this is neither published nor taken.
LARGEST_ENTRY = 1 << 30

_LENGTH = struct.Struct("<I")

#: Compressing what is shorter, or what shrinks by less, costs more than it saves.
_WORTH_FROM = 512
_WORTH_IT = 0.9
_LEVEL = 3

#: How the provenance of what came from a remote says so.
SIGNER, SCOPE = "signer", "scope"

_HEADER = {"about": bytes, "provenance": bytes, "cost": float, "created": int, "names": tuple, "sizes": tuple}
_ABOUT = {"meta": dict, "kind": str, "name": str, "fields": dict, "provenance": dict}


def pack_entry(entry: Entry) -> tuple[bytes, int, int]:
    """(packed, encoding, size of the body). Raises ValueError for an entry whose description is not as we write it."""
    provenance = encode(entry.provenance)
    about = entry.about()
    if not about.endswith(provenance):
        raise ValueError("the provenance does not come last")
    items = entry.items()
    header = encode(
        {
            "about": about[: -len(provenance)],
            "provenance": provenance,
            "cost": entry.cost,
            "created": entry.created,
            "names": tuple(name for name, _ in items),
            "sizes": tuple(len(data) for _, data in items),
        }
    )
    body = b"".join((_LENGTH.pack(len(header)), header, *(data for _, data in items)))
    if len(body) >= _WORTH_FROM:
        packed = zstd().compress(body, _LEVEL)
        if len(packed) < len(body) * _WORTH_IT:
            return packed, ZSTD, len(body)
    return body, RAW, len(body)


def unpack(packed: Bytes, encoding: int, size: int, limit: int = LARGEST_ENTRY) -> bytes:
    """The body, exactly ``size`` bytes of it; not one more is ever made. Raises RejectedError."""
    if not 0 <= size <= limit:
        raise RejectedError(f"it says that it holds {size} bytes", "oversize")
    if encoding == RAW:
        if len(packed) != size:
            raise RejectedError("it is not as long as it says", "payload")
        return bytes(packed)
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


def read_entry(body: bytes, digest: str, scope: str, signer: str) -> Entry:
    """The entry in a body. Raises RejectedError for anything that we would not have written.

    Its provenance says from now on who signed it and for which scope: what ``ls --long``
    shows, what revoking a key goes by, and why it is not published again as one's own.
    """
    try:
        (length,) = _LENGTH.unpack_from(body)
        start = _LENGTH.size + length
        header = decode(body[_LENGTH.size : start])
        if not isinstance(header, dict) or {name: type(value) for name, value in header.items()} != _HEADER:
            raise ValueError("malformed data: the header does not say what it should")
        about = header["about"] + _with_signer(header["provenance"], scope, signer)
        _check_about(about)
        table = _table(header["names"], header["sizes"], start, len(body))
    except ArtifactNameError as error:
        raise RejectedError(str(error), "name") from None
    except (ValueError, TypeError, struct.error) as error:
        raise RejectedError(str(error), "malformed") from None
    cost, created = header["cost"], header["created"]
    if not 0 <= cost < float("inf") or not 0 <= created < 1 << 63:
        raise RejectedError("its cost or time cannot be", "malformed")
    return Entry(digest, "remote", cost, created, len(body), table, body, about)


def _table(names: tuple[Any, ...], sizes: tuple[Any, ...], at: int, end: int) -> dict[str, bytes | tuple[int, int]]:
    if len(names) != len(sizes) or len(set(names)) != len(names):
        raise ValueError("malformed data: names and sizes do not belong together")
    table: dict[str, bytes | tuple[int, int]] = {}
    for name, size in zip(names, sizes, strict=True):
        if type(size) is not int or size < 0:
            raise ValueError("malformed data: a size that cannot be")
        table[check_name(name)] = (at, at + size)
        at += size
    if at != end:
        raise ValueError("malformed data: its parts do not add up")
    return table


def _check_about(about: bytes) -> None:
    described = decode(about)
    if not isinstance(described, dict) or {name: type(value) for name, value in described.items()} != _ABOUT:
        raise ValueError("malformed data: the description does not say what it should")
    fields = described["fields"]
    if not all(type(label) is str and type(token) is bytes for label, token in fields.items()):
        raise ValueError("malformed data: the fields of its key are not tokens")


def _with_signer(provenance: bytes, scope: str, signer: str) -> bytes:
    """A writer makes all its entries with the same provenance: worked out once for each."""
    known = _provenances.get((provenance, scope, signer))
    if known is None:
        said = decode(provenance)
        if not isinstance(said, dict):
            raise ValueError("malformed data: the provenance is not a mapping")
        known = encode({**said, SCOPE: scope, SIGNER: signer})
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
    """Whether somebody else signed it: then it is not ours to sign."""
    return SIGNER in entry.provenance


def zstd() -> Any:
    """In the standard library from 3.14 on, a backport before."""
    try:
        from compression import zstd
    except ImportError:
        from backports import zstd
    return zstd
