"""A walk over a model: its code and configuration by content, its tensors by what they are, not by what they hold.

``keys.functions.walk`` would hash every weight. Here a tensor that lies in a place it can be
exchanged at (a parameter, a buffer, a plain attribute, an item of a list or dict that
is an attribute) is a *slot*: it becomes an input of the package, so new weights hit,
and a change in place, a replaced parameter or another ``.data`` is seen by the next
call without anything being bound anew. The walk writes the number of the slot; shape,
dtype and the rest go into the key separately. Tied weights are one tensor in several
slots and so one number.

Tensors in other places (a closure, a global) count by content and are compiled in.
One that is both is refused: exchanging it in its slot would leave the other behind.
"""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import torch

from ..errors import UncacheableError
from ..keys import functions
from ..keys.functions import distributions, installed
from ..keys.functions.objects import attributes_of
from ..keys.functions.walk import PLAIN, WRITERS, Walk
from .reasons import NotHotError
from .structure import PLAIN_TENSORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_Module = torch.nn.Module
_Tensor = torch.Tensor

assert functions  # loaded for what it teaches the walk


class Survey(Walk):
    """One walk over what is compiled. ``run`` does it; then the rest can be read."""

    __slots__ = ("_counted", "_lifted", "_scanned", "constants", "digits", "functions", "slots", "tensors")

    def __init__(self, target: Any) -> None:
        super().__init__(_root(target))
        #: Where each tensor lies: a dict or list, and the name or index in it.
        self.slots: list[tuple[Any, Any]] = []
        #: The tensors in the slots, each once, in the order in which the walk met them.
        self.tensors: list[Any] = []
        #: Tensors that count by content.
        self.constants: list[Any] = []
        #: Every function that was met, a library's too.
        self.functions: list[FunctionType] = []
        self.digits = ""
        self._lifted: dict[int, int] = {}
        self._counted: dict[int, int] = {}
        self._scanned: set[int] = set()
        self.foreign = _Foreign()

    def run(self) -> Survey:
        """Raises NotHotError with the way to what has no form."""
        distributions.refresh()
        try:
            self.digits = self.digest()
        except UncacheableError as error:
            raise NotHotError(f"{error.field}: {error.reason}" if error.field else error.reason) from None
        for tensor in self.constants:
            if id(tensor) in self._lifted:
                raise NotHotError(
                    "a weight is also held by a closure or a global", "reach it through the module everywhere"
                )
        placed: dict[int, int] = {}
        for container, name in self.slots:
            number = id(container[name])
            placed[number] = placed.get(number, 0) + 1
        if placed != self._counted:
            raise NotHotError(
                "a weight is also held by a closure or a global", "reach it through the module everywhere"
            )
        return self

    def token(self, value: Any, label: str) -> bytes:
        kind = type(value)
        if kind in PLAIN:
            return super().token(value, label)
        if isinstance(value, _Tensor):
            number = self._lifted.get(id(value))
            if number is None:
                self.constants.append(value)
                return super().token(value, label)
            self._counted[id(value)] = self._counted.get(id(value), 0) + 1
            return b"T%d;" % number
        if kind is FunctionType:
            self.functions.append(value)
        elif kind not in WRITERS and id(value) not in self.numbers and not isinstance(value, _NO_INSTANCES):
            self._scan(value)
        return super().token(value, label)

    def node(self, value: Any, record: Any, label: str, key: object = None) -> bytes:
        if isinstance(value, _Module) and not any("__slots__" in vars(base) for base in type(value).__mro__):
            record = _record_module
        return super().node(value, record, label, key)

    def _scan(self, value: Any) -> None:
        """Make slots of the tensors among the attributes of an instance, and in the dicts and lists among them."""
        state = attributes_of(value)
        if id(state) in self._scanned:
            return
        self._scanned.add(id(state))
        for name, item in state.items():
            if isinstance(item, _Tensor):
                self._lift(state, name, item)
            elif type(item) is dict and id(item) not in self.numbers and id(item) not in self._scanned:
                self._scanned.add(id(item))
                for key, held in item.items():
                    if isinstance(held, _Tensor):
                        self._lift(item, key, held)
            elif type(item) is list and id(item) not in self.numbers and id(item) not in self._scanned:
                self._scanned.add(id(item))
                for at, held in enumerate(item):
                    if isinstance(held, _Tensor):
                        self._lift(item, at, held)

    def _lift(self, container: Any, name: Any, tensor: Any) -> None:
        if type(tensor) not in PLAIN_TENSORS:
            raise NotHotError(f"{name} is a {type(tensor).__qualname__}, which is more than a tensor")
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            raise NotHotError(
                f"{name} is a tensor of layout {tensor.layout} on {tensor.device.type}",
                "packages take dense tensors that have content; a model on meta is materialised by to_empty()",
            )
        if tensor.is_conj() or tensor.is_neg():
            raise NotHotError(f"{name} is lazily conjugated or negated", "call resolve_conj() or resolve_neg()")
        if id(tensor) not in self._lifted:
            self._lifted[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        self.slots.append((container, name))


class _Foreign(dict):  # type: ignore[type-arg]
    """What others have put into a library's classes, less what Dynamo puts there: tags that count models."""

    def get(self, cls: type, default: Any = None) -> Any:
        found = super().get(cls)
        if found is None:
            bases = [base for base in cls.__mro__ if base.__flags__ & 1 << 9 and installed.token(base) is not None]
            members = [member for base in bases for member in installed.foreign_members(base)]
            found = self[cls] = [member for member in members if not str(member[1]).startswith(_DYNAMO)]
        return found


_DYNAMO = "torch._dynamo.mutation_guard:"

#: What torch notes on a module that it has compiled; its result is the same.
_BOOKKEEPING = frozenset(("_is_torch_compile", "_dynamo_inlined_call_impl"))
#: What every module has and few use. Empty ones are most of what there is to walk.
_HOOKS = frozenset(name for name, value in vars(_Module()).items() if name.endswith(("_hooks", "_kwargs", "_called")))


def _record_module(walk: Walk, module: Any) -> bytes:
    """As any instance: class and attributes, less the empty tables of hooks."""
    parts = [b"I", walk.token(type(module), "its class")]
    for name, item in list(attributes_of(module).items()):
        if name in _BOOKKEEPING:
            continue
        empty = name in _HOOKS and isinstance(item, dict) and not item
        parts += (walk.token(name, ""), b"0" if empty else walk.token(item, f".{name}"))
    return b"".join(parts)


#: What has attributes but is no instance with a state of its own, as far as slots are concerned.
_NO_INSTANCES = (type, FunctionType, MethodType, BuiltinFunctionType, ModuleType, _Tensor)


def _root(target: Any) -> Any:
    """What is called when the target is called: for an object, its class's ``__call__`` bound to it."""
    if isinstance(target, FunctionType | MethodType | type) or type(target) in WRITERS:
        return target
    call = next((vars(base)["__call__"] for base in type(target).__mro__ if "__call__" in vars(base)), None)
    return MethodType(call, target) if isinstance(call, FunctionType) else target
