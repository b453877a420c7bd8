"""``Entry``: all that one compile produced, and the one file it lives in.

The file (format version 1; docs/format.md has the grammar and its history):

    head     magic "hotE", u16 version, u16 zero, check of all of head, table and
             about that follows it, key, u64 created (ns), f64 cost (s),
             u32 number of blobs, u32 length of table, u32 length of about,
             u64 length of inline, check of inline
    table    per artifact: u16 length of name, u8 place, u64 size, name,
             and for place BLOB its 32-byte address
    about    canonical encoding of kind, name, fields, meta, provenance
    inline   the artifacts of place INLINE, one after another

Both checks are XXH3-128; the first covers the second and the key the entry is
filed under, so a valid file copied to another name does not pass. All integers
are little-endian. Nothing in it is executable or a path.

Two checks and two reads, so that the usual entry, one artifact, comes from the
kernel as the very ``bytes`` its reader gets: reading the file whole and cutting
50 kB out of it costs a second allocation and a copy. A reader needs no ``fstat``.
"""

from __future__ import annotations

import struct
import time

from xxhash import xxh3_128, xxh3_128_digest

from ..errors import ArtifactNameError, UncacheableError, UsageError
from ..keys.digest import decode, decode_item, encode, encode_str
from . import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, NoReturn

    from ..keys.key import Key

    BytesLike = bytes | bytearray | memoryview

FORMAT_VERSION = 1

_MAGIC = b"hotE"
_HEAD = struct.Struct("<4sHH16s32sQdIIIQ16s")
#: The part of the head that its check covers.
_CHECKED = struct.Struct("<32sQdIIIQ16s")
_ROW = struct.Struct("<HBQ")
_START = _HEAD.pack(_MAGIC, FORMAT_VERSION, 0, b"", b"", 0, 0, 0, 0, 0, 0, b"")[:8]
_HEAD_SIZE = _HEAD.size
_CHECKED_FROM = 24

#: What is read at first. Table and about are shorter unless there are many artifacts.
_FIRST_READ = 1024

INLINE, BLOB = 0, 1

#: Artifacts up to this size live inside the entry's own file: one open, one read.
#: Cubins and PTX are well below; shared libraries and captured trees above.
INLINE_LIMIT = 256 * 1024

#: Past this much inline data only tiny artifacts stay inside, so that reading a head stays cheap.
INLINE_TOTAL = 4 * 1024 * 1024
_TINY = 4096

_MAX_NAME = 4096

# The encoding of ``about``, an ordinary mapping, cut at its values: only those differ between entries.
_ABOUT_META = b"{5:" + encode("meta")
_FIELDS, _KIND, _NAME, _PROVENANCE = map(encode, ("fields", "kind", "name", "provenance"))
_NOTHING = encode({})

#: Kind and name as they stand in ``about``, up to the fields: a program compiles for few names, or once for each.
_CALLED: dict[tuple[str, str], bytes] = {}

_INFINITE = float("inf")

#: How the provenance of what came from a remote says so: the id of the key whose signature was checked, or "" and
#: the mark that none was; and the scope it was published in. What was made here says nothing of the kind.
SIGNER, SCOPE, UNSIGNED = "signer", "scope", "unsigned"

#: Not in ``about``: made here. In it: it has to be asked. So a hit on one's own entries costs one look.
FOREIGN = encode(SIGNER)

#: What a description says that makes no sense. Not that the entry was made here: then we would sign it.
_SENSELESS: dict[str, str | dict[str, object]] = {
    "meta": {}, "fields": {}, "kind": "", "name": "", "provenance": {SIGNER: "", SCOPE: "", UNSIGNED: True},
}  # fmt: skip


class DamagedError(Exception):
    """The bytes are not the entry they should be. Never leaves ``store/``."""


class OtherVersionError(Exception):
    """An entry of another format version: a miss, left where it is. Never leaves ``store/``."""


class Entry:
    """Artifacts by name, with metadata, cost and provenance. Read-only.

    ``entry["cubin"]`` is ``bytes``; iteration, ``in``, ``len``, ``keys()`` and
    ``items()`` work as on a mapping. ``tier`` says where it came from: ``memory``,
    ``disk``, ``layer`` or ``compiled``. What is not asked for is not taken apart:
    a hit usually wants one artifact and the cost.
    """

    __slots__ = ("_about", "_inline", "_table", "cost", "created", "digest", "size", "tier")

    #: The digest of the key it is filed under.
    digest: str
    #: Seconds the compile took.
    cost: float
    #: When it was made, in nanoseconds since the epoch.
    created: int
    #: Bytes it holds in memory.
    size: int
    tier: str

    def __init__(
        self,
        digest: str,
        tier: str,
        cost: float,
        created: int,
        size: int,
        table: dict[str, bytes | tuple[int, int]],
        inline: BytesLike,
        about: bytes,
    ) -> None:
        self.digest = digest
        self.tier = tier
        self.cost = cost
        self.created = created
        self.size = size
        #: Each artifact, or where in ``inline`` it lies.
        self._table = table
        self._inline: bytes = inline  # type: ignore[assignment]  # or a view of bytes, where a subclass cuts it itself
        self._about = about

    def __getitem__(self, name: str) -> bytes:
        value = self._table[name]
        if type(value) is not bytes:
            # Cut out on first use and kept: most readers want one artifact of several. All of
            # ``inline``, the usual case, is not even copied.
            value = self._table[name] = self._inline[value[0] : value[1]]
        return value

    def get(self, name: str, default: bytes | None = None) -> bytes | None:
        return self[name] if name in self._table else default

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def keys(self) -> list[str]:
        return list(self._table)

    def items(self) -> list[tuple[str, bytes]]:
        return [(name, self[name]) for name in self._table]

    def parts(self) -> Mapping[str, BytesLike]:
        """As ``items``, for who only passes them on: views where ``bytes`` would be a copy."""
        return dict(self.items())

    def __bool__(self) -> bool:
        return True  # an entry without artifacts is still a hit

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata given to ``put``, as plain data: a fresh copy, the caller's to change."""
        return self._described("meta")  # type: ignore[no-any-return]

    @property
    def provenance(self) -> dict[str, Any]:
        """Who made it: producer, platform, and whatever the writer added."""
        return self._described("provenance")  # type: ignore[no-any-return]

    @property
    def kind(self) -> str:
        return str(self._described("kind"))

    @property
    def name(self) -> str:
        return str(self._described("name"))

    @property
    def fields(self) -> dict[str, bytes]:
        """For each field of the key its token, as ``Key.fields`` makes them."""
        return self._described("fields")  # type: ignore[no-any-return]

    def about(self) -> bytes:
        """Kind, name, fields, meta and provenance, encoded."""
        return self._about

    def origin(self) -> tuple[str, str] | None:
        """(signer, scope) of what came from a remote, the signer "" if nobody's signature was checked.

        None for what was made here.
        """
        return origin_in(self.provenance)

    def _described(self, what: str) -> Any:
        """One part of about, or nothing of its kind where about makes no sense: a hit never raises for its bytes."""
        empty = _SENSELESS[what]
        try:
            found = decode_item(self._about, what)
        except (ValueError, KeyError):
            found = None
        if type(found) is type(empty):
            return found
        return dict(empty) if isinstance(empty, dict) else empty

    def at(self, tier: str) -> Entry:
        """The same entry as seen from another tier; shares all bytes."""
        return Entry(self.digest, tier, self.cost, self.created, self.size, self._table, self._inline, self._about)

    def __repr__(self) -> str:
        return f"<Entry {self.digest[:12]}… {self.keys()} cost={self.cost:.3g}s from {self.tier}>"


class Draft:
    """An entry on its way to disk: validated, measured, with its large artifacts set apart.

    Raises ArtifactNameError, UsageError or UncacheableError (for metadata that is
    not plain data): these are misuse, found before anything is written.
    """

    __slots__ = ("about", "artifacts", "cost", "created", "digest", "kind", "large", "name", "small")

    def __init__(
        self,
        key: Key,
        artifacts: Mapping[str, BytesLike],
        meta: Mapping[str, object] | None,
        cost: float,
        provenance: bytes,
    ) -> None:
        self.digest, self.kind, self.name = key.digest, key.kind, key.name
        if type(cost) is not float or not 0.0 <= cost < _INFINITE:
            cost = _check_cost(cost)
        self.cost = cost
        self.created = time.time_ns()
        called = key.kind, key.name
        self.about = b"".join(
            (
                _ABOUT_META,  # first, because readers ask for it most
                encode_plain("meta", meta) if meta else _NOTHING,
                _CALLED.get(called) or _encode_called(called),
                key.encoded_fields(),
                _PROVENANCE,
                provenance,
            )
        )
        self._place(artifacts)

    def _place(self, artifacts: Mapping[str, BytesLike], own: bool = True) -> None:
        """Small artifacts inside the file, large ones beside it; with ``own``, in bytes that cannot change any more."""
        self.artifacts: dict[str, bytes] = {}
        self.small: list[str] = []
        self.large: list[str] = []
        total = 0
        for name, data in artifacts.items():
            if name not in _KNOWN_NAMES:
                check_name(name)
            if type(data) is not bytes and own:
                data = _own(name, data)
            self.artifacts[name] = data  # type: ignore[assignment]  # or a view of bytes, on its way to disk only
            size = len(data)
            if size <= _TINY or (size <= INLINE_LIMIT and total + size <= INLINE_TOTAL):
                self.small.append(name)
                total += size
            else:
                self.large.append(name)

    @classmethod
    def of(cls, entry: Entry) -> Draft:
        """An entry that is stored already, on its way to another store: unchanged, and views stay views."""
        draft = cls.__new__(cls)
        draft.digest, draft.kind, draft.name = entry.digest, entry.kind, entry.name
        draft.cost, draft.created, draft.about = entry.cost, entry.created, entry.about()
        draft._place(entry.parts(), own=False)
        return draft

    def entry(self, tier: str) -> Entry:
        size = len(self.about) + sum(map(len, self.artifacts.values()))
        return Entry(self.digest, tier, self.cost, self.created, size, dict(self.artifacts), b"", self.about)

    def pieces(self, addresses: Mapping[str, str]) -> tuple[list[bytes], int]:
        """The file as pieces to write, and their total size; ``addresses`` names the blobs."""
        table: list[bytes] = []
        inline: list[bytes] = []
        length = 0
        for name, data in self.artifacts.items():
            raw = name.encode("utf-8", "surrogatepass")
            size = len(data)
            if name in addresses:
                table += (_ROW.pack(len(raw), BLOB, size), raw, bytes.fromhex(addresses[name]))
            else:
                table += (_ROW.pack(len(raw), INLINE, size), raw)
                inline.append(data)
                length += size
        rows = b"".join(table)
        fixed = _CHECKED.pack(
            bytes.fromhex(self.digest),
            self.created,
            self.cost,
            len(self.large),
            len(rows),
            len(self.about),
            length,
            xxh3_128_digest(inline[0]) if len(inline) == 1 else _check_of(inline),
        )
        checked = fixed + rows + self.about
        start = _START + xxh3_128_digest(checked) + checked
        return [start, *inline], len(start) + length


def origin_in(provenance: Mapping[str, Any]) -> tuple[str, str] | None:
    """``Entry.origin`` of a provenance."""
    return (str(provenance[SIGNER]), str(provenance.get(SCOPE, ""))) if SIGNER in provenance else None


def from_remote(provenance: Mapping[str, Any], signer: str, scope: str) -> dict[str, Any]:
    """The provenance of what came from there, whatever it said of that itself."""
    said = {name: value for name, value in provenance.items() if name not in (SIGNER, SCOPE, UNSIGNED)}
    return {**said, SIGNER: signer, SCOPE: scope, **({} if signer else {UNSIGNED: True})}


def _encode_called(called: tuple[str, str]) -> bytes:
    if len(_CALLED) >= 256:
        _CALLED.clear()
    kind, name = called
    known = _CALLED[called] = b"".join((_KIND, encode_str(kind), _NAME, encode_str(name), _FIELDS))
    return known


def _check_of(pieces: list[bytes]) -> bytes:
    check = xxh3_128()
    for piece in pieces:
        check.update(piece)
    return check.digest()


def read_entry(fd: int, digest: str, tier: str) -> tuple[Entry, dict[str, tuple[str, int]]]:
    """The entry in an open file, checked, and the artifacts that are blobs, still to be attached.

    ``digest`` is the key it was found under; blobs are name → (address, size).
    Raises DamagedError, OtherVersionError, OSError.
    """
    start = files.pread(fd, _FIRST_READ, 0)
    if start[:8] != _START or len(start) < _HEAD_SIZE:
        _other_version(start)
    _, _, _, check, key, created, cost, blob_count, table_size, about_size, inline_size, inline_check = (
        _HEAD.unpack_from(start)
    )
    rows_end = _HEAD_SIZE + table_size
    end = rows_end + about_size
    if end > len(start):
        start = _read_description(fd, end)
    if xxh3_128_digest(start[_CHECKED_FROM:end]) != check:
        raise DamagedError("the checksum of its description does not match")
    if key != bytes.fromhex(digest):
        raise DamagedError(f"it holds the entry of key {key.hex()[:12]}…")
    inline = files.pread(fd, inline_size, end)
    if len(inline) != inline_size:
        inline = files.read_at(fd, inline_size, end)  # one call gives at most 2 GiB
    if xxh3_128_digest(inline) != inline_check:
        raise DamagedError("the checksum of its artifacts does not match")
    table, blobs = _table(start, rows_end)
    if len(blobs) != blob_count:
        raise DamagedError("its parts do not add up")
    return Entry(digest, tier, cost, created, end + inline_size, table, inline, start[rows_end:end]), blobs


def _read_description(fd: int, end: int) -> bytes:
    """A long one. A damaged head may claim gigabytes, for which room would be made before they are found missing."""
    if end > files.fstat(fd).st_size:
        raise DamagedError("it is shorter than it says")
    return files.read_at(fd, end, 0)


def _table(start: bytes, end: int) -> tuple[dict[str, bytes | tuple[int, int]], dict[str, tuple[str, int]]]:
    """Where each artifact lies in ``inline``, and which are blobs."""
    table: dict[str, bytes | tuple[int, int]] = {}
    blobs: dict[str, tuple[str, int]] = {}
    at = _HEAD_SIZE
    inline = 0
    try:
        while at < end:
            length, place, size = _ROW.unpack_from(start, at)
            at += _ROW.size
            name = str(start[at : at + length], "utf-8", "surrogatepass")
            at += length
            if place == INLINE:
                table[name] = (inline, inline + size)
                inline += size
            else:
                blobs[name] = (start[at : at + 32].hex(), size)
                table[name] = b""
                at += 32
    except (struct.error, UnicodeDecodeError) as error:
        raise DamagedError(str(error)) from None
    return table, blobs


def attach(entry: Entry, contents: Mapping[str, bytes]) -> None:
    """Complete an entry with its blobs, once they have been read and checked."""
    entry._table.update(contents)
    entry.size += sum(map(len, contents.values()))


class Summary:
    """What the beginning of a file says of its entry: for the index, never for a hit. The artifacts are not read."""

    __slots__ = ("_about", "blobs", "cost", "created")

    def __init__(self, fd: int) -> None:
        """Raises DamagedError, OSError."""
        start = files.pread(fd, _FIRST_READ, 0)
        if start[:8] != _START or len(start) < _HEAD_SIZE:
            raise DamagedError("not an entry of this version")
        _, _, _, check, _, self.created, self.cost, _, table_size, about_size, _, _ = _HEAD.unpack_from(start)
        rows_end = _HEAD_SIZE + table_size
        end = rows_end + about_size
        if end > len(start):
            start = _read_description(fd, end)
        if xxh3_128_digest(start[_CHECKED_FROM:end]) != check:
            raise DamagedError("the checksum of its description does not match")
        _, self.blobs = _table(start, rows_end)
        self._about = start[rows_end:end]

    def described(self, what: str) -> Any:
        """One part of about; DamagedError when it makes no sense."""
        try:
            return decode_item(self._about, what)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(str(error)) from None


def _other_version(start: bytes) -> NoReturn:
    """Entries of every version begin with the same four bytes."""
    if len(start) >= 8 and start.startswith(_MAGIC) and start[:8] != _START:
        raise OtherVersionError
    raise DamagedError("it does not begin like an entry")


def check_name(name: object) -> str:
    """An artifact name that stays inside whatever directory it is written to."""
    if not isinstance(name, str) or not name:
        raise ArtifactNameError(f"an artifact name is a non-empty string, not {name!r}")
    if "\0" in name or len(name.encode("utf-8", "surrogatepass")) > _MAX_NAME:
        raise ArtifactNameError(f"artifact name {name[:40]!r}…: no NUL, at most {_MAX_NAME} bytes")
    if any(part in ("", ".", "..") for part in name.replace("\\", "/").split("/")):
        raise ArtifactNameError(f"artifact name {name!r} could leave its directory; use a plain relative name")
    if type(name) is str and len(_KNOWN_NAMES) < 256:
        _KNOWN_NAMES.add(name)
    return name


#: Names that were found good: a compiler gives its artifacts the same few every time.
_KNOWN_NAMES: set[str] = set()


def _own(name: str, data: object) -> bytes:
    """Bytes that cannot change after they were checked; ``bytes`` itself is not copied."""
    if type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise UsageError(f"artifact {name!r} is bytes-like, not {type(data).__name__} (encode text first)")


def _check_cost(cost: float) -> float:
    cost = float(cost)
    if not 0 <= cost < _INFINITE:
        raise UsageError(f"cost is the seconds the compile took, not {cost!r}")
    return cost


def encode_plain(what: str, data: Mapping[str, object] | None) -> bytes:
    """Metadata encoded; what could not come back equal is refused now, not found out by the reader."""
    if not data:
        return _NOTHING
    try:
        raw = encode(dict(data))
        decode(raw)
    except (UncacheableError, ValueError) as error:
        raise UsageError(
            f"{what} is plain data (None, bool, numbers, str, bytes, tuple, list, dict): {error}"
        ) from None
    return raw
