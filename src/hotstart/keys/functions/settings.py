"""What of a library's function or class can be changed without touching its code: defaults, closures, attributes.

``json.dumps.__kwdefaults__["indent"] = 7`` leaves the function at its name and in its
file. So what is set there is part of what stands for the function. What belongs to no
library (a function of the user's put into a closure) makes it count by content.

Not looked into: what a library keeps in dicts, lists and objects of its own, because
those are its caches and registries, and differ from one moment to the next; paths
below the installation, which differ from machine to machine; and variables that the
closure itself assigns.
"""

from __future__ import annotations

import sys
from operator import is_
from types import BuiltinFunctionType, FunctionType, ModuleType

from ..digest import dtype_name, encode_str
from . import distributions
from .bytecode import facts_of
from .instructions import operations
from .walk import ABSENT, PLAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    #: The very objects that were there, to be compared one by one.
    State = list[object]

#: Wrappers around wrappers, and tuples in tuples, that are looked through.
_DEPTH = 8

_PLACES = tuple({f"{path}/" for path in (sys.prefix, sys.base_prefix, sys.exec_prefix)})

#: How many values of a default container are looked at.
_MEMBERS = 64


class NotTheirsError(Exception):
    """Something that belongs to no library was put there. Never leaves ``keys.functions``."""


def state_of(function: FunctionType, depth: int = 0) -> State:
    """What ``settings_of`` depends on: while each of these is the same object, so is its answer."""
    attributes = function.__dict__
    wrapped = attributes.get("__wrapped__") if attributes else None
    state: State = [function.__code__, function.__defaults__, wrapped]
    named, closure = function.__kwdefaults__, function.__closure__
    if named:
        state += named
        state += named.values()
    for cell in closure or ():
        try:
            value = cell.cell_contents
        except ValueError:
            value = ABSENT
        state.append(value)
        # One that holds itself, as a recursive closure does, is seen once: the second time there is nothing new.
        if type(value) is FunctionType and depth < _DEPTH and value is not function:
            state += state_of(value, depth + 1)
    return state


def is_same(function: FunctionType, state: State) -> bool:
    now = state_of(function)
    return len(now) == len(state) and all(map(is_, now, state))


def settings_of(function: FunctionType, depth: int = 0) -> bytes:
    """What is set in a library's function; empty when there is nothing. Raises NotTheirsError."""
    parts = []
    defaults, named, closure = function.__defaults__, function.__kwdefaults__, function.__closure__
    if defaults:
        parts += [b"d%d:" % len(defaults), *(_form(value, depth, True) for value in defaults)]
    if named:
        parts.append(b"k%d:" % len(named))
        for name in sorted(named):
            parts += (encode_str(name), _form(named[name], depth, True))
    if closure:
        assigned = _assigned(function)
        for name, cell in zip(function.__code__.co_freevars, closure, strict=False):
            if name not in assigned and name != "__class__":  # the class it was defined in, for super()
                try:
                    parts += (b"c", encode_str(name), _form(cell.cell_contents, depth, False))
                except ValueError:
                    parts.append(b"?")
    return b"".join(parts)


def is_volatile(function: FunctionType) -> bool:
    """Whether a default can change and be the same object."""
    values = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return any(type(value) in (list, dict, set, bytearray) for value in values)


def code_form(function: FunctionType) -> str:
    """What the code does: ``code.replace(co_consts=…)`` keeps its file and its name."""
    return facts_of(function.__code__).digest.hex()


def attribute_form(value: Any) -> bytes:
    """A value in a library's class. Raises NotTheirsError; empty for what is not looked into."""
    if type(value) in PLAIN or type(value) in (tuple, frozenset):
        return _form(value, 0, False)
    if isinstance(value, FunctionType | type | ModuleType) or not _is_theirs(type(value)):
        _form(value, 0, False)
    return b""


def _assigned(function: FunctionType) -> set[str]:
    return {str(name) for act, name, _ in operations(function.__code__) if act == "STORE_DEREF"}


def _form(value: Any, depth: int, contents: bool) -> bytes:
    """``contents``: whether what can change counts by what is in it."""
    kind = type(value)
    plain = PLAIN.get(kind)
    if plain is not None:
        return b"place" if kind is str and value.startswith(_PLACES) else plain(value, 0)
    if depth >= _DEPTH:
        return b"deep"
    if kind is tuple or (kind is list and contents):
        return b"(%d:" % len(value) + b"".join([_form(item, depth + 1, contents) for item in value[:_MEMBERS]])
    if kind is frozenset or (kind is set and contents):
        return b"<%d:" % len(value) + b"".join(sorted([_form(item, depth + 1, contents) for item in value]))
    if kind is dict and contents:
        items = list(value.items())[:_MEMBERS]
        return b"{%d:" % len(value) + b"".join([_form(item, depth + 1, contents) for pair in items for item in pair])
    if kind is FunctionType:
        if not _is_their_code(value):
            raise NotTheirsError
        return b"F" + encode_str(f"{value.__module__}:{value.__code__.co_qualname}") + settings_of(value, depth + 1)
    if isinstance(value, type):
        if not _is_theirs(value):
            raise NotTheirsError
        return b"T" + encode_str(f"{value.__module__}:{value.__qualname__}")
    if isinstance(value, ModuleType):
        if distributions.module_owner(value) is None:
            raise NotTheirsError
        return b"M" + encode_str(value.__name__)
    if kind is BuiltinFunctionType:
        return b"B" + encode_str(value.__qualname__)
    if not _is_theirs(kind):
        raise NotTheirsError
    name = dtype_name(value)
    if name is None and hasattr(kind, "_member_map_"):
        name = str(getattr(value, "_name_", ""))
    return b"o" + encode_str(f"{kind.__module__}:{kind.__qualname__} {name or ''}")


def _is_their_code(function: FunctionType) -> bool:
    filename = function.__code__.co_filename
    if filename[:1] != "<" or distributions.owner(filename) is not None:
        return distributions.owner(filename) is not None
    # Generated, from no file: whose globals it sees decides.
    module = sys.modules.get(function.__globals__.get("__name__", ""))
    return (
        module is not None and vars(module) is function.__globals__ and distributions.module_owner(module) is not None
    )


#: Modules that generators of bindings make up for the types they make: each begins so.
_MADE_UP = ("_cython_", "nanobind", "pybind11_")
_HEAP_TYPE = 1 << 9


def _is_theirs(kind: type) -> bool:
    if not kind.__flags__ & _HEAP_TYPE or kind.__module__.startswith(_MADE_UP):
        return True  # only compiled code makes such
    module = sys.modules.get(kind.__module__)
    return module is not None and distributions.module_owner(module) is not None
