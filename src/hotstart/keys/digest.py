"""One byte string per value: the encoding under every key and all metadata.

Grammar (version 1; golden digests in tests/keys pin it):

    value   = "N" | "T" | "F"                    None, True, False
            | "i" hex ";"                        int, sign first, any size
            | "d" 8 bytes                        float, IEEE 754 big-endian
            | "c" 16 bytes                       complex, real then imaginary
            | "s" n ":" utf-8 | "b" n ":" bytes  str, bytes-like
            | "(" n ":" value*                   tuple
            | "[" n ":" value*                   list
            | "{" n ":" (value value)*           mapping, pairs sorted by encoded key
            | "<" n ":" value*                   set, members sorted by encoding
            | "/" value value value              slice: start, stop, step
            | "." | "o" str value                Ellipsis; a labelled object: its type, its content

Every form is self-delimiting and starts with its own tag, so two different
values never share an encoding: ``True``, ``1``, ``1.0``, ``"1"``, ``b"1"``,
``(1,)``, ``[1]``, ``{1: x}`` and ``{"1": x}`` are nine things. ``-0.0`` differs
from ``0.0`` (a division can tell them apart); every NaN is the one quiet NaN.
Strings are not normalised: compilers see code points, so do we. Lone surrogates
are kept, because they occur in file names.

What is not listed has no canonical form and raises ``UncacheableError``; nothing
falls back to ``repr`` or ``pickle``, whose output names addresses and versions.
"""

from __future__ import annotations

import os
import sys
from struct import pack, unpack

from blake3 import blake3

from ..errors import UncacheableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")

#: Deeper nesting than this is a cycle or a mistake, and would end in a RecursionError.
MAX_DEPTH = 100

#: From this size on BLAKE3 hashes with several threads; below, waking them costs more than it saves.
_PARALLEL_FROM = 8 << 20

#: The process whose threads those are.
_BORN = os.getpid()

_NAN = b"d\x7f\xf8\x00\x00\x00\x00\x00\x00"


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """The BLAKE3 digest of ``data`` as 64 hexadecimal digits."""
    return blake3(data, max_threads=threads_for(len(data))).hexdigest()


def threads_for(size: int) -> int:
    """How many threads BLAKE3 may use for so many bytes.

    A child made by fork inherits the thread pool without its threads and would wait
    for them for ever, so only the process that imported this module uses them.
    """
    return blake3.AUTO if size >= _PARALLEL_FROM and os.getpid() == _BORN else 1


def encode(value: object, depth: int = 0) -> bytes:
    """The canonical encoding of ``value``.

    Raises UncacheableError, with the path to what could not be encoded.
    """
    encoder = ENCODERS.get(type(value))
    if encoder is not None and depth < MAX_DEPTH:
        return encoder(value, depth)
    return _encode_object(value, depth)


#: Encodings of short strings: labels, options and architectures come again in every key.
SHORT: dict[str, bytes] = {}
_SHORT_LENGTH = 48
_SHORT_COUNT = 4096


def encode_str(value: str, _depth: int = 0) -> bytes:
    if len(value) > _SHORT_LENGTH:
        raw = value.encode("utf-8", "surrogatepass")
        return b"s%d:%b" % (len(raw), raw)
    known = SHORT.get(value)
    if known is None:
        raw = value.encode("utf-8", "surrogatepass")
        known = b"s%d:%b" % (len(raw), raw)
        if len(SHORT) >= _SHORT_COUNT:
            SHORT.clear()
        SHORT[value] = known
    return known


def _encode_bytes(value: bytes | bytearray | memoryview, _depth: int) -> bytes:
    raw = bytes(value)
    return b"b%d:%b" % (len(raw), raw)


def _encode_float(value: float, _depth: int) -> bytes:
    return b"d" + pack(">d", value) if value == value else _NAN


def _encode_complex(value: complex, depth: int) -> bytes:
    return b"c" + _encode_float(value.real, depth)[1:] + _encode_float(value.imag, depth)[1:]


def _encode_sequence(tag: bytes) -> Callable[[Any, int], bytes]:
    def encoder(value: Any, depth: int) -> bytes:
        parts = [b"%b%d:" % (tag, len(value))]
        inner = depth + 1
        encoders = ENCODERS if inner < MAX_DEPTH else _TOO_DEEP
        try:
            for item in value:
                parts.append(encoders.get(type(item), _encode_object)(item, inner))  # noqa: PERF401  # counted below
        except UncacheableError as error:
            raise _within(f"[{len(parts) - 1}]", error) from None
        return b"".join(parts)

    return encoder


def _encode_mapping(value: Any, depth: int) -> bytes:
    pairs = []
    name: object = None
    inner = depth + 1
    encoders = ENCODERS if inner < MAX_DEPTH else _TOO_DEEP
    try:
        for name, item in value.items():
            pairs.append(
                encoders.get(type(name), _encode_object)(name, inner)
                + encoders.get(type(item), _encode_object)(item, inner)
            )
    except UncacheableError as error:
        raise _within(f"[{name!r}]", error) from None
    # No encoded key is a prefix of another, so sorting pairs sorts by key.
    pairs.sort()
    return b"{%d:%b" % (len(pairs), b"".join(pairs))


def _encode_set(value: Any, depth: int) -> bytes:
    items = sorted(encode(item, depth + 1) for item in value)
    return b"<%d:%b" % (len(items), b"".join(items))


def _encode_slice(value: slice, depth: int) -> bytes:
    return b"/" + b"".join(encode(end, depth + 1) for end in (value.start, value.stop, value.step))


def _within(place: str, error: UncacheableError) -> UncacheableError:
    """The same error, seen from one container further out; a cycle's path is cut."""
    return UncacheableError(error.reason, (place + error.field)[:200])


ENCODERS: dict[type, Callable[[Any, int], bytes]] = {
    str: encode_str,
    int: lambda value, _: b"i%x;" % value,
    bool: lambda value, _: b"T" if value else b"F",
    type(None): lambda _value, _: b"N",
    float: _encode_float,
    complex: _encode_complex,
    bytes: _encode_bytes,
    bytearray: _encode_bytes,
    memoryview: _encode_bytes,
    tuple: _encode_sequence(b"("),
    list: _encode_sequence(b"["),
    dict: _encode_mapping,
    set: _encode_set,
    frozenset: _encode_set,
    slice: _encode_slice,
    type(...): lambda _value, _: b".",
}


def encoded_once(cls: type[T]) -> type[T]:
    """Decorates a class whose instances never change: each is encoded once, and keeps it in its slot ``_encoding``."""
    ENCODERS[cls] = _encode_kept
    return cls


def _encode_kept(value: Any, depth: int) -> bytes:
    try:
        return value._encoding  # type: ignore[no-any-return]  # set below, as bytes
    except AttributeError:
        raw = value._encoding = _encode_object(value, depth)
        return raw


#: Where containers look beyond the greatest depth: everything then ends in ``_encode_object``, which says so.
_TOO_DEEP: dict[type, Callable[[Any, int], bytes]] = {}


def labelled(label: str, content: bytes) -> bytes:
    """The form of an object: what it is, then what is in it."""
    return b"o" + encode_str(label) + content


def _encode_object(value: Any, depth: int) -> bytes:
    """Everything that is not exactly a built-in type.

    No library is imported to recognise its objects: one that was never imported
    cannot have made the value.
    """
    if depth >= MAX_DEPTH:
        raise UncacheableError(f"nested more than {MAX_DEPTH} deep (a cycle?)")
    cls = type(value)
    label = f"{cls.__module__}.{cls.__qualname__}"
    if hasattr(cls, "__hotstart_key__"):
        # Our own classes keep their label when they move to another module.
        label = getattr(cls, "__hotstart_label__", label)
        return labelled(label, encode(value.__hotstart_key__(), depth + 1))
    enum = sys.modules.get("enum")
    if enum is not None and isinstance(value, enum.Enum):
        # Name and value: renumbering an enum changes what its members mean.
        return labelled(label, encode((value.name, value.value), depth + 1))
    dtype = dtype_name(value)
    if dtype is not None:
        return labelled("dtype", encode_str(dtype))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        # np.float64 is a float and np.str_ a str, but np.float32(1) is neither: give all one form.
        return labelled("scalar " + str(value.dtype), _encode_bytes(value.tobytes(), 0))
    if hasattr(cls, "__dataclass_fields__"):
        return labelled(label, _encode_dataclass(value, depth))
    for base in (str, int, float, complex, bytes, tuple, list, dict, set, frozenset):
        if isinstance(value, base):
            if getattr(value, "__dict__", None):
                raise UncacheableError(f"a {label} with attributes of its own has no canonical form")
            return labelled(label, ENCODERS[base](value, depth))
    if label == "builtins.mappingproxy":
        return _encode_mapping(value, depth)
    if label == "builtins.range":
        return labelled(label, encode((value.start, value.stop, value.step)))
    raise UncacheableError(_why_not(value, label))


def _encode_dataclass(value: Any, depth: int) -> bytes:
    fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
    extra = set(getattr(value, "__dict__", ())) - set(fields)
    if extra:
        raise UncacheableError(f"has attributes that are not fields: {', '.join(sorted(extra))}")
    return _encode_mapping(fields, depth)


def dtype_name(value: Any) -> str | None:
    """The name of a torch, NumPy or ml_dtypes element type; None for anything else."""
    cls = type(value)
    if cls.__module__ == "torch" and cls.__qualname__ == "dtype":
        return str(value).removeprefix("torch.")
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, type) and issubclass(value, numpy.generic):
        value = numpy.dtype(value)
    if isinstance(value, numpy.dtype):
        if value.names or value.subdtype:
            return str(numpy.lib.format.dtype_to_descr(value))
        # A byte order that is not this machine's is part of the type; the native one has no mark.
        swapped = not value.isnative
        return str(value.name) + (" byte-swapped" if swapped else "")
    return None


def _why_not(value: object, label: str) -> str:
    if hasattr(value, "__fspath__"):
        return "a path differs between machines; put the content of the file in the key"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"a {label} has no canonical form; use hotstart.tensor_signature(x), or its bytes"
    if callable(value):
        return f"code has no canonical form; use hotstart.fingerprint({getattr(value, '__name__', 'it')})"
    return f"a {label} has no canonical form; pass plain data or give it __hotstart_key__()"


def decode(data: bytes) -> Any:
    """The value whose plain encoding is ``data``: the inverse of ``encode`` for data.

    Labelled objects, slices and Ellipsis are not data and are refused, as is
    anything malformed, with ValueError.
    """
    try:
        value, end = _decode(data, 0, 0)
    except (IndexError, RecursionError, TypeError) as error:
        raise ValueError(f"malformed data: {error}") from None
    if end != len(data):
        raise ValueError("malformed data: something follows the value")
    return value


def decode_item(data: bytes, name: str) -> Any:
    """One value of an encoded mapping, found without building those behind it; KeyError when it has none."""
    try:
        colon = data.index(b":")
        if data[:1] != b"{":
            raise ValueError("malformed data: not a mapping")
        at = colon + 1
        for _ in range(int(data[1:colon])):
            key, at = _decode(data, at, 1)
            value, at = _decode(data, at, 1)
            if key == name:
                return value
    except (IndexError, RecursionError, TypeError) as error:
        raise ValueError(f"malformed data: {error}") from None
    raise KeyError(name)


def _decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise ValueError("malformed data: nested too deep")
    tag = data[at : at + 1]
    at += 1
    if tag in _SINGLES:
        return _SINGLES[tag], at
    if tag == b"d":
        return unpack(">d", _exactly(data, at, 8))[0], at + 8
    if tag == b"c":
        return complex(*unpack(">dd", _exactly(data, at, 16))), at + 16
    if tag == b"i":
        end = data.index(b";", at)
        return int(data[at:end], 16), end + 1
    colon = data.index(b":", at, at + 20)
    count = int(data[at:colon])
    at = colon + 1
    if count < 0 or count > len(data) - at:
        raise ValueError("malformed data: a length that cannot be")
    if tag == b"s":
        return str(_exactly(data, at, count), "utf-8", "surrogatepass"), at + count
    if tag == b"b":
        return _exactly(data, at, count), at + count
    if tag not in _CONTAINERS:
        raise ValueError(f"malformed data: unknown tag {tag!r}")
    items = []
    for _ in range(count * 2 if tag == b"{" else count):
        item, at = _decode(data, at, depth + 1)
        items.append(item)
    if tag == b"{":
        return dict(zip(items[::2], items[1::2], strict=True)), at
    return _CONTAINERS[tag](items), at


def _exactly(data: bytes, at: int, count: int) -> bytes:
    piece = data[at : at + count]
    if len(piece) != count:
        raise ValueError("malformed data: it ends too early")
    return bytes(piece)


_SINGLES: dict[bytes, object] = {b"N": None, b"T": True, b"F": False}
_CONTAINERS: dict[bytes, Callable[[list[Any]], Any]] = {b"(": tuple, b"[": list, b"<": frozenset, b"{": dict}
