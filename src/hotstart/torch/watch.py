"""What a survey read of Python's side, remembered so that a later call can see in microseconds whether it still holds.

A key is made once; then the model may be changed: a flag, a hook, a patched method, a
global. torch.compile guards against each of these, so must we. A survey takes tens of
milliseconds, too much for a call; but everything it read lies in some dictionary, list,
cell or namespace. Comparing what they hold now with what they held then, by identity, is
a few thousand pointers, and ``map`` and ``chain`` do it without running any bytecode.

By identity, because 1 == True == 1.0. An equal value that is another object costs a new
survey, and the key then says that nothing has changed.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
from array import array
from collections import deque
from functools import partial
from itertools import chain
from operator import is_, itemgetter
from types import FunctionType, MappingProxyType, ModuleType

import torch

from ..keys.functions import installed, methods, objects
from ..keys.functions.bytecode import facts_of
from ..keys.functions.objects import attributes_of
from .reasons import NotHotError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..keys.functions.references import Chain, Root
    from ..keys.functions.walk import Walk
    from .key import Call
    from .reach import Place
    from .survey import Survey

_module = torch.nn.modules.module

#: What every module has; all but ``training`` are containers that are filled, not replaced.
_STANDARD = frozenset(vars(torch.nn.Module()))
_FILLED = tuple(name for name, value in vars(torch.nn.Module()).items() if isinstance(value, dict))
#: Of these, what a call goes through. Hooks of the backward pass and of state_dict do not run in one without gradients.
_CALLED = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")

#: An array of NumPy has no version: its content is compared, up to this many bytes.
_ARRAY_LIMIT = 4096


class Watch:
    """``same()``: whether everything that was read when this was made is still there."""

    __slots__ = (
        *("_arrays", "_bytes", "_cells", "_containers", "_empty", "_functions", "_getters", "_kept", "_lengths"),
        *(
            "_names",
            "_namespaces",
            "_objects",
            "_places",
            "_small",
            "_snapshot",
            "_tensors",
            "_types",
            "_variables",
            "_views",
        ),
        "_was",
    )

    def __init__(self, call: Call) -> None:
        survey = call.survey
        self._containers: list[Any] = []
        self._objects: list[Any] = []
        #: Hooks for all modules among them: the key was refused if there were any.
        self._empty: list[Any] = [held for name, held in vars(_module).items() if _is_global_hooks(name, held)]
        self._views: list[Any] = []
        self._namespaces: list[dict[str, Any]] = []
        self._names: list[Any] = []
        self._cells: list[Any] = []
        self._functions: list[FunctionType] = []
        #: What has to be asked for: each a function without arguments.
        self._getters: list[Any] = []
        self._bytes: list[tuple[Any, Any]] = []
        self._variables: list[str] = []
        self._arrays: list[tuple[Any, bytes]] = []
        self._tensors = list(survey.constants)
        self._collect(survey)
        for walk in call.walks:
            self._walked(walk)
        self._getters += [function for _, function in call.asked]
        self._places = _grouped(call.places)
        self._small = [pair for pair in map(_as_integers, self._tensors) if pair is not None]
        views = {id(view): view for view in self._views}
        self._views = list(views.values())
        self._containers += self._views
        self._lengths = list(map(len, self._containers))
        self._snapshot = list(chain.from_iterable(self._views))
        pairs = {(id(d), name): (d, name) for d, name in zip(self._namespaces, self._names, strict=True)}
        self._namespaces = [namespace for namespace, _ in pairs.values()]
        self._names = [name for _, name in pairs.values()]
        self._was = self._others()
        #: So that no other object gets the identity of one of these.
        self._kept = [(f.__code__, f.__defaults__, f.__kwdefaults__) for f in self._functions]
        self._types = list(map(type, self._objects))

    def same(self) -> bool:
        try:
            was = self._was
            return (
                not any(self._empty)
                and list(map(len, self._containers)) == self._lengths
                and all(map(is_, map(type, self._objects), self._types))
                and all(map(is_, chain.from_iterable(self._views), self._snapshot))
                and all(map(is_, map(dict.get, self._namespaces, self._names), was[0]))
                and (not self._functions or self._of_functions() == was[1])
                and (not self._cells or all(map(is_, self._of_cells(), was[2])))
                and (not self._tensors or self._of_tensors() == was[3])
                and (not self._variables or [os.environ.get(name) for name in self._variables] == was[4])
                and (not self._getters or all(map(is_, [getter() for getter in self._getters], was[5])))
                and all(getter(namespace) == held for getter, namespace, held in self._places)
                and all(value == held for value, held in self._bytes)
                and all(array.tobytes() == held for array, held in self._arrays)
                and all(torch.equal(tensor, held) for tensor, held in self._small)
            )
        except (RuntimeError, ValueError, AttributeError, KeyError, TypeError):
            return False  # a dict that another thread is changing, a cell that was emptied, a name that is gone

    def _others(self) -> tuple[Any, ...]:
        return (
            list(map(dict.get, self._namespaces, self._names)),
            self._of_functions(),
            self._of_cells(),
            self._of_tensors(),
            [os.environ.get(name) for name in self._variables],
            [getter() for getter in self._getters],
        )

    def _of_functions(self) -> list[Any]:
        # Tuples of ids: defaults may hold tensors, which do not compare.
        return [(id(f.__code__), id(f.__defaults__), id(f.__kwdefaults__)) for f in self._functions]

    def _of_cells(self) -> list[Any]:
        return [cell.cell_contents for cell in self._cells]

    def _of_tensors(self) -> list[Any]:
        return [(tensor._version, tensor.data_ptr()) for tensor in self._tensors]

    # -- what to look at ----------------------------------------------------------

    def _collect(self, survey: Survey) -> None:
        for tensor in survey.constants:
            if tensor.is_inference():
                raise NotHotError(
                    "a tensor in a closure or global was made in inference mode: its changes are not seen"
                )
        known = set()
        for _, value in survey.nodes:
            if isinstance(value, torch.nn.Module):
                known |= self._module(value)
        for number, (record, value) in enumerate(survey.nodes):
            parent = survey.parents[number][0]
            if id(value) in known or (parent >= 0 and _is_copy(survey.nodes[parent][0])):
                continue
            if record is methods._record_method:
                self._method(survey, *value)
            else:
                self._node(record, value)
        for cls in _classes(survey):
            self._views.append(vars(cls).values())
        self._views.append(vars(torch.Tensor).values())
        # What a forward may find hung on a tensor: new ones show in the number of them.
        self._containers += map(vars, survey.tensors)
        self._views += [vars(tensor).values() for tensor in survey.tensors if vars(tensor)]

    def _walked(self, walk: Walk) -> None:
        """What else was fingerprinted: classes of arguments, functions that were put into libraries."""
        for number, (record, value) in enumerate(walk.nodes):
            parent = walk.parents[number][0]
            if isinstance(value, torch.Tensor):
                self._tensors.append(value)
            elif parent >= 0 and _is_copy(walk.nodes[parent][0]):
                continue
            elif record is methods._record_method:
                self._method(walk, *value)
            else:
                self._node(record, value)

    def _method(self, walk: Walk, function: Any, owner: Any) -> None:
        """A bound method that reads some attributes of its object: these, where the object did not count whole."""
        if id(owner) in walk.numbers or type(function) is not FunctionType or isinstance(owner, type | ModuleType):
            return
        state = attributes_of(owner)
        for name in facts_of(function.__code__).self_reads or ():
            self._pair(state, name)
        self._objects.append(owner)
        self._slots(owner)
        self._class(type(owner))

    def _class(self, cls: type) -> None:
        self._getters.append(partial(getattr, cls, "__mro__"))
        for base in cls.__mro__:
            if not _is_library(base):
                self._views.append(vars(base).values())

    def _slots(self, value: Any) -> None:
        if any("__slots__" in vars(base) for base in type(value).__mro__):
            found = [item for item in objects._slots(type(value)) if item.__name__[:2] != "__"]
            self._getters += [partial(_slot, descriptor, value) for descriptor in found]

    def _module(self, module: Any) -> set[int]:
        state = module.__dict__
        self._objects.append(module)
        self._containers.append(state)
        own = [name for name in state if name not in _STANDARD]
        for name in (*own, "training"):
            self._pair(state, name)
        for name in _CALLED:
            held = state.get(name)
            if not isinstance(held, dict):
                self._pair(state, name)
            elif name in ("_parameters", "_buffers"):
                # Tensors are compared on their own, at every call; a None here may become one.
                (self._containers if held else self._empty).append(held)
                for key, item in held.items():
                    if item is None:
                        self._pair(held, key)
            elif held:
                self._views += (held.values(), held.keys())
            else:
                self._empty.append(held)
        # Which buffers are saved says nothing about a call.
        known = (*_FILLED, "_non_persistent_buffers_set")
        return {id(module), *[id(state[name]) for name in known if name in state]}

    def _node(self, record: Any, value: Any) -> None:
        kind = type(value)
        if kind is FunctionType:
            self._function(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, ModuleType):
            self._views.append(vars(value).values())
        elif isinstance(value, dict | MappingProxyType):
            self._views += (value.values(), value.keys())
        elif isinstance(value, list | set | deque):
            self._views.append(value)  # of a set also the order, which a loop sees
        elif isinstance(value, bytearray | array) or kind.__name__ == "ndarray":
            self._content(value, kind)
        elif isinstance(value, partial):
            self._getters += [partial(getattr, value, name) for name in ("func", "args", "keywords")]
        elif isinstance(value, functools._lru_cache_wrapper):
            self._getters.append(partial(_is_unused, value))
        if not isinstance(value, type | ModuleType | FunctionType | torch.Tensor) and kind is not tuple:
            self._instance(value)

    def _content(self, value: Any, kind: type) -> None:
        content = bytes(value) if isinstance(value, bytearray) else value.tobytes()
        if len(content) > _ARRAY_LIMIT:
            raise NotHotError(f"a {kind.__name__} of {len(content)} bytes is read", "make it a tensor of the module")
        (self._bytes if isinstance(value, bytearray) else self._arrays).append((value, content))

    def _instance(self, value: Any) -> None:
        self._objects.append(value)
        state = getattr(value, "__dict__", None)
        if isinstance(state, dict):
            self._views += (state.values(), state.keys())
        self._slots(value)

    def _function(self, function: FunctionType) -> None:
        self._functions.append(function)
        for cell in function.__closure__ or ():
            try:
                cell.cell_contents  # noqa: B018  # an empty cell has nothing to compare
            except ValueError:
                raise NotHotError(f"{function.__qualname__} closes over a name that is not bound yet") from None
            self._cells.append(cell)
        self._containers.append(function.__dict__)
        if function.__dict__:
            self._views.append(function.__dict__.values())
        if function.__kwdefaults__:
            self._views.append(function.__kwdefaults__.values())
        if installed.distribution_of(function) is not None:
            return
        facts = facts_of(function.__code__)
        for root, attributes, label in facts.refs:
            self._reference(function, root, attributes)
            for asked in facts.asked.get(label, ()):
                if asked is not None and asked[0] == "const":
                    self._variables.append(asked[1])
                elif asked is not None:
                    self._pair(function.__globals__, asked[1])
                    self._variables.append(str(function.__globals__.get(asked[1])))

    def _reference(self, function: FunctionType, root: Root, attributes: Chain) -> None:
        namespace = function.__globals__
        if isinstance(root, str):
            self._pair(namespace, root)
            if root not in namespace:
                self._pair(vars(builtins), root)
            value = namespace.get(root)
        else:
            name = root[1].partition(".")[0] if root[3] else root[1]
            if root[2]:
                return  # a relative import inside a function: the module is watched through what is read of it
            self._pair(sys.modules, name)
            value = sys.modules.get(name)
        for attribute in attributes:
            if not isinstance(value, ModuleType):
                return
            self._pair(vars(value), attribute)
            value = vars(value).get(attribute)

    def _pair(self, namespace: dict[str, Any], name: Any) -> None:
        self._namespaces.append(namespace)
        self._names.append(name)


_ABSENT = object()


def _slot(descriptor: Any, value: Any) -> Any:
    try:
        return descriptor.__get__(value, type(value))
    except AttributeError:
        return _ABSENT  # a slot that nothing was put into


def _is_unused(cached: Any) -> bool:
    """Whether an lru_cache is empty: what is in one may be from before something it reads was changed."""
    return not cached.cache_info().currsize


def _grouped(places: list[Place]) -> list[tuple[Any, dict[str, Any], Any]]:
    """For each namespace something that takes all of the names from it at once, and what it took."""
    names: dict[int, tuple[dict[str, Any], list[str]]] = {}
    for namespace, _, name in places:
        names.setdefault(id(namespace), (namespace, []))[1].append(name)
    return [(getter, space, getter(space)) for space, wanted in names.values() for getter in (itemgetter(*wanted),)]


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _as_integers(tensor: Any) -> tuple[Any, Any] | None:
    """A small tensor to compare with a copy of it: writing through ``.data`` or NumPy leaves its version alone.

    Bit by bit, because NaN is not NaN. Not on a GPU, which would have to be waited for.
    """
    size = tensor.element_size()
    if tensor.device.type != "cpu" or size not in _INTEGERS or tensor.numel() * size > _ARRAY_LIMIT:
        return None
    bits = tensor.detach().view(_INTEGERS[size])
    return bits, bits.clone()


def _is_global_hooks(name: str, held: Any) -> bool:
    return name.startswith("_global_") and isinstance(held, dict)


def _is_copy(record: Any) -> bool:
    """Whether what is below this node is not the thing itself but what a handler made of it."""
    return "_handled.<locals>" in getattr(record, "__qualname__", "")


def _is_library(cls: type) -> bool:
    try:
        return installed.token(cls) is not None
    except Exception:
        return True  # refused for what it does, which only a library's class can be


def _classes(survey: Survey) -> list[type]:
    """The library's classes of modules that the survey met, and their bases."""
    found: dict[type, None] = {}
    for cls in survey.foreign:
        if issubclass(cls, torch.nn.Module):
            found.update(dict.fromkeys(base for base in cls.__mro__ if base is not object))
    return list(found)
