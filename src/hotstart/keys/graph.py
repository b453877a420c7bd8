"""``CacheKey`` and ``InputSpec``: the key of a compiled graph, for compilers that have one."""

from __future__ import annotations

from ..errors import UsageError
from .device import DeviceClass
from .digest import dtype_name
from .key import Key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: A dimension that a compiled graph accepts at any size.
DYNAMIC = -1


class InputSpec:
    """Shape and element type of one input; ``-1`` is a dynamic dimension.

    ``dtype`` may be a torch or NumPy dtype or its name: ``torch.float32``,
    ``np.dtype("f4")`` and ``"float32"`` are the same input.
    """

    __slots__ = ("dtype", "shape")

    shape: tuple[int, ...]
    dtype: str

    def __init__(self, shape: Iterable[int], dtype: object) -> None:
        sizes = tuple(shape)
        for size in sizes:
            if not isinstance(size, int) or isinstance(size, bool) or size < DYNAMIC:
                raise UsageError(f"a dimension is a size or -1 (dynamic), not {size!r}")
        name = dtype if isinstance(dtype, str) else dtype_name(dtype)
        if not name:
            raise UsageError(f"not an element type: {dtype!r}")
        self.shape = tuple(int(size) for size in sizes)
        self.dtype = name.removeprefix("torch.")

    __hotstart_label__ = "hotstart.InputSpec"

    def __hotstart_key__(self) -> tuple[tuple[int, ...], str]:
        return self.shape, self.dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputSpec) and self.__hotstart_key__() == other.__hotstart_key__()

    def __hash__(self) -> int:
        return hash(self.__hotstart_key__())

    def __repr__(self) -> str:
        return f"InputSpec({list(self.shape)}, {self.dtype!r})"


class CacheKey(Key):
    """The key of one compiled graph: its hash, its inputs, what it was compiled for.

    Further fields (options, toolchain) are keywords, as in ``Key``.
    """

    __slots__ = ()

    def __init__(
        self, *, graph_hash: str | bytes, inputs: Iterable[InputSpec], device: DeviceClass, **fields: object
    ) -> None:
        if not graph_hash:
            raise UsageError("graph_hash is empty: every graph would share one key")
        if not isinstance(device, DeviceClass):
            raise UsageError(f"device is a DeviceClass such as DeviceClass.cuda(9, 0), not {device!r}")
        super().__init__("graph", graph_hash=graph_hash, inputs=list(inputs), device=device, **fields)

    def to_storage_key(self) -> str:
        """The name the entry is stored under: 64 hexadecimal digits, safe as a file name."""
        return self.digest
