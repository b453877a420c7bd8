"""What a handle is filed under: any mix of data, code and tensors, as one digest.

Only this process ever sees these tokens, so they may hold what no key on disk may:
the index of a device.
"""

from __future__ import annotations

from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType

from blake3 import blake3

from ..errors import UncacheableError
from ..keys.digest import ENCODERS, dtype_name, encode
from ..keys.key import Key
from ..keys.tensors import tensor_signature
from .recall import recall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .recall import Versions

_LEAVES = frozenset((str, int, bool, type(None), float, complex, bytes))
_CODE = (FunctionType, MethodType, BuiltinFunctionType, partial, type)


class _Standing:
    """What stands in an encoding for something that has no form of its own."""

    __slots__ = ("_what",)

    __hotstart_label__ = "hotstart.argument"

    def __init__(self, *what: object) -> None:
        self._what = what

    def __hotstart_key__(self) -> object:
        return self._what


#: How the encoding of ``_Standing("code", digest)`` begins: the digest of a function is its last 64 bytes.
_CODE_DIGEST = encode(_Standing("code", "0" * 64))[:-64]


def token_of(key: object) -> str:
    """The digest of a key: a ``hotstart.Key``, or plain data, code and tensors in tuples, lists and dicts.

    Data counts by value and type (``True``, ``1`` and ``1.0`` are three), functions
    and classes by fingerprint, tensors by what a compiler sees of them and by their
    device, never by their elements. Symbolic sizes are told apart over the whole key.
    Raises UncacheableError naming what has no form.
    """
    if type(key) is Key:
        return key.digest  # hashed with a prefix that no encoding begins with: the two never meet
    tensors: list[Any] = []
    versions: Versions = {}
    if type(key) is tuple:
        # Part by part, so that a function among them does not make the rest take the long way.
        parts = [b"(%d:" % len(key)]
        for at, value in enumerate(key):
            try:
                parts.append(_part(value, tensors, versions))
            except UncacheableError as error:
                raise UncacheableError(error.reason, f"[{at}]{error.field}") from None
    else:
        parts = [_part(key, tensors, versions)]
    if tensors:
        parts.append(encode([tensor_signature(tensors), [str(getattr(tensor, "device", "")) for tensor in tensors]]))
    return blake3(b"".join(parts)).hexdigest()


def _part(value: Any, tensors: list[Any], versions: Versions) -> bytes:
    if type(value) is FunctionType:
        return _CODE_DIGEST + recall(value, versions).encode()
    try:
        return ENCODERS.get(type(value), encode)(value, 0)
    except UncacheableError:
        return encode(_settle(value, tensors, versions))


def _settle(value: Any, tensors: list[Any], versions: Versions) -> Any:
    """``value`` with a stand-in for all code and tensors in it."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind is tuple or kind is list:
        return kind([_settle(item, tensors, versions) for item in value])
    if kind is dict:
        return {name: _settle(item, tensors, versions) for name, item in value.items()}
    if hasattr(kind, "__hotstart_key__"):
        return value
    if isinstance(value, _CODE) and dtype_name(value) is None:
        return _Standing("code", recall(value, versions))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        tensors.append(value)
        return _Standing("tensor", len(tensors))
    return value  # has a form of its own, or encode says why not
