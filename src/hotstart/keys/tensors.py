"""Arrays and tensors in keys: by content (``hash_value``) or by what a compiler sees of them (``tensor_signature``)."""

from __future__ import annotations

import sys

from ..errors import UncacheableError
from .digest import MAX_DEPTH, digest_of, dtype_name, encode
from .symbols import Symbols

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: Where symbolic tensors of kernel languages keep the value of positions outside the bounds.
_PADDING = ("padding_value", "other")

#: Tensor classes that are nothing but their content; others may do anything when they are used.
_PLAIN_TENSORS = frozenset(("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer"))


def hash_value(value: object) -> str:
    """The digest of a value: 64 hexadecimal digits, the same on every machine.

    Takes what ``Key`` takes, and also NumPy arrays and torch tensors, by content, in
    tuples, lists, dicts and dataclasses to any depth. Of plain data it is
    ``digest_of(encode(value))``. Raises UncacheableError with the path to what has no
    canonical form.
    """
    try:
        return digest_of(encode(value))
    except UncacheableError:
        return digest_of(encode(_with_content(value, 0)))


class _Content:
    """Stands for an array, or for an object with arrays in it, while it is encoded."""

    __slots__ = ("_content",)

    def __init__(self, content: object) -> None:
        self._content = content

    __hotstart_label__ = "hotstart.content"

    def __hotstart_key__(self) -> object:
        return self._content


def _with_content(value: Any, depth: int) -> Any:
    """``value`` with every array in it replaced by its content; everything else as it was."""
    if depth > MAX_DEPTH:
        return value  # encode says what is wrong
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(_with_content(item, depth + 1) for item in value)
    if kind is dict:
        return {name: _with_content(item, depth + 1) for name, item in value.items()}
    if _is_array(value):
        return _Content(_with_content(array_content(value), depth + 1))
    if hasattr(kind, "__dataclass_fields__") and not hasattr(kind, "__hotstart_key__"):
        fields = {name: getattr(value, name) for name in kind.__dataclass_fields__}
        if set(getattr(value, "__dict__", ())) <= set(fields):
            label = f"{kind.__module__}.{kind.__qualname__}"
            return _Content((label, _with_content(fields, depth + 1)))
    return value


def _is_array(value: object) -> bool:
    return _numpy_array(value) or _torch_tensor(value)


def _numpy_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _torch_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def array_content(value: Any) -> dict[str, Any]:
    """All there is to a NumPy array or torch tensor, as plain data with a digest in place of its elements.

    A tensor on a device is copied from there. Raises UncacheableError for what has
    no elements to read (meta and fake tensors) or is more than its elements.
    """
    return _torch_content(value) if _torch_tensor(value) else _numpy_content(value)


def _numpy_content(value: Any) -> dict[str, Any]:
    numpy: Any = sys.modules["numpy"]
    content: dict[str, Any] = {
        "array": f"{type(value).__module__}.{type(value).__qualname__}",
        "dtype": dtype_name(value.dtype),
        "shape": tuple(value.shape),
        "strides": _strides_class(value.shape, [step / (value.itemsize or 1) for step in value.strides]),
    }
    extra = getattr(value, "__dict__", None)
    if extra:
        content["attributes"] = dict(extra)  # the mask of a masked array, for one
    if value.dtype.hasobject:
        content["elements"] = value.ravel().tolist()
    else:
        content["elements"] = digest_of(numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8).data)
    return content


def _torch_content(value: Any) -> dict[str, Any]:
    torch: Any = sys.modules["torch"]
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if kind not in _PLAIN_TENSORS:
        raise UncacheableError(f"a {kind} is more than its elements")
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise UncacheableError(f"a tensor of layout {value.layout} on {value.device.type} has no plain elements")
    flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    size = flat.numel() * flat.element_size()
    if "numpy" in sys.modules:
        raw = flat.view(torch.uint8).numpy().data
    else:
        from ctypes import string_at  # a copy, but torch alone gives no buffer

        raw = string_at(flat.data_ptr(), size) if size else b""
    content = {
        "array": kind,
        "dtype": dtype_name(value.dtype),
        "shape": tuple(int(size) for size in value.shape),
        "strides": _strides_class(value.shape, value.stride()),
        "device": value.device.type,
        "requires_grad": value.requires_grad,
        "elements": digest_of(raw),
    }
    extra = vars(value)
    if extra:
        content["attributes"] = dict(extra)
    return content


def tensor_signature(*values: object) -> Any:
    """What a compiler sees of its arguments, as plain data for a ``Key``.

    Each argument is a torch tensor, a NumPy array, anything else with ``shape`` and
    ``dtype`` (a symbolic tensor of a kernel language), a scalar, or a tuple or list of
    these. One argument gives its signature, several give a tuple.

    A tensor becomes a dict: ``rank``, ``shape``, ``dtype``, ``strides``, ``jagged_dim``,
    ``padding``, ``constexpr``, ``value``. Symbolic dimensions are numbered by first
    occurrence over all arguments, so (s, s) differs from (s, t), and renaming changes
    nothing. ``strides`` is a class: ``"contiguous"``, the order of the dimensions if
    they are dense, the strides themselves if not, None where there are none. The
    device is not part of it; a key has its own field for that.
    """
    symbols = Symbols()
    if len(values) == 1:
        return _signature(values[0], symbols)
    return tuple(_signature(value, symbols) for value in values)


def _signature(value: Any, symbols: Symbols) -> Any:
    kind = type(value)
    if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type):
        return _tensor(value, symbols)
    if isinstance(value, tuple | list):
        return tuple(_signature(item, symbols) for item in value)
    if kind.__name__ == "constexpr" and hasattr(value, "value"):
        return {"constexpr": True, "value": value.value}
    encode(value)  # a scalar, by value; anything else is refused here, where its name is still known
    return {"value": value}


def _tensor(value: Any, symbols: Symbols) -> dict[str, Any]:
    concrete = _is_array(value)
    shape = tuple(symbols.dimension(size) for size in value.shape)
    fields: dict[str, Any] = {
        "rank": len(shape),
        "shape": shape,
        "dtype": _element_type(value.dtype, symbols),
        "strides": _strides(value, shape, symbols),
        "jagged_dim": getattr(value, "jagged_dim", None),
        "padding": None if concrete else next((getattr(value, a) for a in _PADDING if hasattr(value, a)), None),
        "constexpr": not concrete and bool(getattr(value, "constexpr", False)),
        "value": None if concrete else getattr(value, "value", None),
    }
    layout = str(getattr(value, "layout", "torch.strided")).removeprefix("torch.")
    if _torch_tensor(value):
        if layout == "jagged":
            fields["jagged_dim"] = value._ragged_idx
        if layout != "strided":
            fields["layout"] = layout
        # Memory that holds the conjugate or the negative of what the tensor is.
        elif value.is_conj() or value.is_neg():
            fields["lazy"] = (value.is_conj(), value.is_neg())
    return fields


def _element_type(dtype: Any, symbols: Symbols) -> Any:
    if dtype is None or isinstance(dtype, str):
        return dtype if dtype is None else dtype.removeprefix("torch.")
    if hasattr(dtype, "shape") and hasattr(dtype, "dtype"):
        return _tensor(dtype, symbols)  # tiles: a tensor whose elements are tensors
    name = dtype_name(dtype)
    if name is not None:
        return name
    name = getattr(dtype, "name", None)  # triton.language.float32 and its kin
    return (f"{type(dtype).__module__}.{type(dtype).__qualname__}", name) if isinstance(name, str) else dtype


def _strides(value: Any, shape: tuple[Any, ...], symbols: Symbols) -> Any:
    if _numpy_array(value):
        return _strides_class(shape, [step / (value.itemsize or 1) for step in value.strides])
    if _torch_tensor(value) and str(value.layout) != "torch.strided":
        return None
    strides = getattr(value, "strides", None)
    if strides is None and callable(getattr(value, "stride", None)):
        strides = value.stride()
    if strides is None or callable(strides):
        return None
    return _strides_class(shape, [symbols.dimension(stride) for stride in strides])


def _strides_class(shape: Sequence[Any], strides: Sequence[Any]) -> Any:
    """Contiguous, dense in some order, or neither; then, or with symbols, the strides as they are.

    The stride of a dimension of size 1 is never used, and nothing is of an empty tensor.
    """
    exact = tuple(int(step) if isinstance(step, float) and step.is_integer() else step for step in strides)
    if not all(isinstance(number, int) for number in (*shape, *exact)):
        return "strided", exact
    if 0 in shape:
        return "contiguous"
    used = [at for at, size in enumerate(shape) if size > 1]
    order = sorted(used, key=lambda at: -exact[at])
    expected = 1
    for at in reversed(order):
        if exact[at] != expected:
            return "strided", tuple(exact[at] if shape[at] > 1 else 0 for at in range(len(shape)))
        expected *= shape[at]
    return "contiguous" if order == used else ("dense", tuple(order))
