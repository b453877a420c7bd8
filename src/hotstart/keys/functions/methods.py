"""Bound methods, as ``keys.functions.walk`` writes them: the function, and what it reads of its object."""

from __future__ import annotations

from types import FunctionType, MemberDescriptorType, MethodType, ModuleType

from ..digest import encode_str
from . import installed
from .bytecode import facts_of
from .objects import attributes_of
from .walk import ABSENT, UNBOUND, WRITERS, Walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _method(walk: Walk, method: MethodType, label: str) -> bytes:
    function, owner = method.__func__, method.__self__
    return bound(walk, function, owner, label)


def bound(walk: Walk, function: Any, owner: Any, label: str) -> bytes:
    """A function bound to an object: a method object is made anew at each access, so the pair is the node."""
    key = (id(function), id(owner))
    return walk.known(key) or walk.node((function, owner), _record_method, label, key)


def _record_method(walk: Walk, pair: tuple[Any, Any]) -> bytes:
    """The function and what it reads of its object; all of the object when it does anything else with it."""
    function, owner = pair
    parts = [b"M", walk.token(function, "")]
    reads = None
    if (
        type(function) is FunctionType
        and not isinstance(owner, type | ModuleType)
        and installed.distribution_of(function) is None
        and not any(_overrides(type(owner), name) for name in ("__getattribute__", "__setattr__", "__delattr__"))
    ):
        reads = facts_of(function.__code__).self_reads
    for name in reads or ():
        found = _attribute(walk, owner, name)
        if found is None:
            reads = None
            break
        parts += (encode_str(name), found)
    if reads is None:
        parts = [*parts[:2], walk.token(owner, "self")]
    return b"".join(parts)


def _overrides(kind: type, name: str) -> bool:
    return getattr(kind, name) is not getattr(object, name)


def _attribute(walk: Walk, owner: Any, name: str) -> bytes | None:
    """What ``owner.name`` stands for, found without running anything; None when that cannot be."""
    kind = type(owner)
    member: Any = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), ABSENT)
    label = f"self.{name}"
    if isinstance(member, property):
        if type(member) is not property:
            return None
        accessors = (member.fget, member.fset, member.fdel)
        return b"p" + b"".join(
            UNBOUND if accessor is None else bound(walk, accessor, owner, label) for accessor in accessors
        )
    data = hasattr(type(member), "__set__") or hasattr(type(member), "__delete__")
    if type(member) is MemberDescriptorType:
        try:
            return b"l" + walk.token(member.__get__(owner, kind), label)
        except AttributeError:
            return UNBOUND
    state = attributes_of(owner)
    if data and member is not ABSENT:
        return None
    if name in state:
        # With what stands behind it: ``del self.x`` uncovers the class's.
        behind = UNBOUND if member is ABSENT else walk.token(member, label)
        return b"i" + walk.token(state[name], label) + behind
    if member is ABSENT:
        return None if hasattr(kind, "__getattr__") or name.startswith("__") else UNBOUND
    if type(member) is FunctionType:
        return bound(walk, member, owner, label)
    if type(member) is staticmethod:
        return b"s" + walk.token(member.__func__, label)
    if type(member) is classmethod:
        return b"C" + bound(walk, member.__func__, kind, label)
    if hasattr(type(member), "__get__") or name.startswith("__"):
        return None
    return walk.token(member, label)


WRITERS[MethodType] = _method
