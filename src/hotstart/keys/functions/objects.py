"""Containers, classes and instances, as ``keys.functions.walk`` writes them.

Order counts wherever Python keeps one (dicts, namespaces, attributes): a loop over
a dict sees it. Identity counts for what can change: two names for one list are not
two lists.

The state of an instance is its ``__dict__`` and its slots. A class that keeps more
than those in C (a lock, a file, a generator) shows it in the size of its instances,
the same way that ``copyreg`` finds out; such an object has a form only if a handler
gives it one.
"""

from __future__ import annotations

import sys
from types import FunctionType, GetSetDescriptorType, MappingProxyType, MemberDescriptorType

from ...errors import UncacheableError
from ..digest import ENCODERS, dtype_name, encode, encode_str
from . import installed
from .callables import annotated
from .doors import CLASSES
from .walk import DESCRIPTIONS, FALLBACKS, PLAIN, WRITERS, Walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Bases whose content can be read whatever a subclass overrides, and how.
_BASES: tuple[type, ...] = (int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)

#: Of a class: what Python adds to describe the class, its place and its layout.
_CLASS_HOUSEKEEPING = DESCRIPTIONS.union(
    (
        *("__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "_abc_impl"),
        *("__annotations__", "__annotations_cache__", "__annotate__"),
    )
)
#: Of an Enum class and its members: caches that fill as flags are combined.
_ENUM_CACHES = frozenset(
    ("_value2member_map_", "_hashable_values_", "_unhashable_values_", "_unhashable_values_map_", "_inverted_")
)
#: Members that are code: they run only if something calls them by name.
_CODE = (FunctionType, staticmethod, classmethod, property)

_POINTER = tuple.__itemsize__
#: The flag of a class that was made at run time: others cannot be changed.
_HEAP_TYPE = 1 << 9


def _all_plain(values: Any) -> bool:
    return all(type(value) in PLAIN for value in values)


def _tuple(walk: Walk, value: tuple[Any, ...], label: str) -> bytes:
    return b"(%d:" % len(value) + b"".join([walk.token(item, f"{label}[{at}]") for at, item in enumerate(value)])


def _items(walk: Walk, items: list[Any]) -> bytes:
    if _all_plain(items):
        return encode(items)
    return b"[%d:" % len(items) + b"".join([walk.token(item, f"[{at}]") for at, item in enumerate(items)])


def _pairs(walk: Walk, pairs: list[tuple[Any, Any]]) -> bytes:
    if all(type(key) in PLAIN and type(value) in PLAIN for key, value in pairs):
        return b"{" + encode(pairs)
    parts = [b"{%d:" % len(pairs)]
    for key, value in pairs:
        name = f"[{key!r}]" if type(key) in PLAIN else "[…]"
        parts += (walk.token(key, "a key"), walk.token(value, name))
    return b"".join(parts)


def _members(walk: Walk, members: Any) -> bytes:
    members = list(members)
    if _all_plain(members):
        return encode(frozenset(members))
    return b"<%d:" % len(members) + b"".join([walk.token(item, "a member") for item in walk.ordered(members)])


def _dict(walk: Walk, value: dict[Any, Any], label: str) -> bytes:
    if value is sys.modules:
        raise UncacheableError("sys.modules leads to every module there is")
    return walk.node(value, lambda walk, value: _pairs(walk, list(value.items())), label)


def _slice(walk: Walk, value: slice, label: str) -> bytes:
    return b"/" + b"".join([walk.token(end, label) for end in (value.start, value.stop, value.step)])


def _proxy(walk: Walk, value: MappingProxyType[Any, Any], label: str) -> bytes:
    return walk.node(value, lambda walk, value: b"P" + _pairs(walk, list(value.items())), label)


def _accessors(walk: Walk, value: property, label: str) -> bytes:
    return b"p" + b"".join([walk.token(accessor, label) for accessor in (value.fget, value.fset, value.fdel)])


def _wrapped(walk: Walk, value: staticmethod[Any, Any] | classmethod[Any, Any, Any], label: str) -> bytes:
    return encode_str(type(value).__name__) + walk.token(value.__func__, label)


def _class(walk: Walk, value: type, label: str) -> bytes:
    """A class: a library's by name together with what others have put into it, any other by content."""
    found = installed.token(value)
    if found is None:
        return installed.native_token(value) or walk.node(value, _record_class, label)
    if (value.__module__, value.__qualname__) in CLASSES:
        walk.leading_out.append((walk.current, label, walk.weak, value))
    foreign = walk.foreign.get(value)
    if foreign is None:
        # The foreign parts of a base count too: its methods are this class's methods.
        bases = [base for base in value.__mro__ if base.__flags__ & _HEAP_TYPE and installed.token(base) is not None]
        foreign = walk.foreign[value] = [member for base in bases for member in installed.foreign_members(base)]
    for name, member in foreign:
        found += b"+" + encode_str(name) + walk.token(member, f"{label}.{name}")
    return found


def _record_class(walk: Walk, cls: type) -> bytes:
    parts = [b"C", encode_str(cls.__name__), encode_str(cls.__qualname__), walk.token(type(cls), "metaclass")]
    parts += [walk.token(base, f"base {base.__qualname__}") for base in cls.__bases__]
    is_enum = hasattr(cls, "_member_map_")
    inherited = _library_names(cls)
    for name, item in list(vars(cls).items()):
        if name in _CLASS_HOUSEKEEPING or (is_enum and name in _ENUM_CACHES):
            continue
        special = name[:2] == "__" and name[-2:] == "__"
        walk.weak = name if isinstance(item, _CODE) and not special and name not in inherited else None
        parts += (encode_str(name), walk.token(item, f"{cls.__qualname__}.{name}"))
        walk.weak = None
    found = vars(cls).get("__annotations__")
    if isinstance(found, dict) and found:
        namespace = getattr(sys.modules.get(cls.__module__), "__dict__", {})
        parts.append(annotated(walk, found, namespace))
    registry = _registered(cls)
    if registry:
        parts += (b"abc", _members(walk, registry))
    return b"".join(parts)


def _library_names(cls: type) -> set[str]:
    """Names that a library's base class also has: the library may call what overrides them."""
    names: set[str] = set()
    for base in cls.__mro__[1:-1]:
        if installed.token(base) is not None:
            names.update(vars(base))
    return names


def _registered(cls: type) -> list[type]:
    """Classes that were registered with an abstract base class: ``isinstance`` says yes to them."""
    if "_abc_impl" not in vars(cls):
        return []
    try:
        from _abc import _get_dump  # type: ignore[import-not-found]
    except ImportError:
        return []
    return [found for found in (reference() for reference in _get_dump(cls)[0]) if found is not None]


def _instance(walk: Walk, value: Any, label: str) -> bytes:
    """Anything else: by the form ``keys.digest`` gives it if it has no identity, else by its class and state."""
    kind = type(value)
    if value is sys.stdout or value is sys.stderr:
        return b"stream"  # a notebook's, or a test's: what is printed is no input
    if hasattr(kind, "__hotstart_key__"):
        return walk.node(value, _record_keyed, label)
    if value is NotImplemented:
        return b"NotImplemented"
    numpy = sys.modules.get("numpy")
    scalar = numpy is not None and isinstance(value, numpy.generic) and installed.token(kind) is not None
    if scalar or kind is range or hasattr(kind, "__fspath__") or dtype_name(value) is not None:
        # In a key float32 is float32; a function can tell torch's from NumPy's.
        return b"t" + encode_str(f"{kind.__module__}.{kind.__qualname__}") + encode(value)
    if hasattr(kind, "n_sequence_fields"):
        # os.stat_result and its kin: a tuple with more behind it.
        return b"q" + walk.token(kind, "its class") + walk.token(value.__reduce__()[1], "")
    if _hides_state(kind):
        found = installed.token(value) or installed.native_token(value) or _native_member(walk, value)
        if found is not None:
            return found
        raise UncacheableError(f"a {kind.__module__}.{kind.__qualname__} holds state that cannot be read")
    return walk.node(value, _record_instance, label)


def _native_member(walk: Walk, value: Any) -> bytes | None:
    """A member of an enumeration that a compiled library defines, as pybind11 makes them."""
    kind = type(value)
    if installed.token(kind) is None:
        return None
    members = getattr(kind, "__members__", None)
    for name, member in members.items() if isinstance(members, dict) else ():
        if member is value or (type(member) is kind and member == value):
            return b"e" + walk.token(kind, "its class") + encode_str(name)
    return None


def _record_keyed(walk: Walk, value: Any) -> bytes:
    return b"K" + walk.token(type(value), "its class") + walk.token(value.__hotstart_key__(), "")


def _record_instance(walk: Walk, value: Any) -> bytes:
    kind = type(value)
    parts = [b"I", walk.token(kind, "its class")]
    base = _content_base(kind)
    if base is not None:
        parts.append(_content(walk, value, base))
    skipped = _ENUM_CACHES if hasattr(kind, "_member_map_") else ()
    for name, item in list(attributes_of(value).items()):
        if name not in skipped:
            parts += (walk.token(name, ""), walk.token(item, f".{name}"))
    parts.append(b"|")
    for slot in _slots(kind):
        try:
            parts += (encode_str(slot.__name__), walk.token(slot.__get__(value, kind), f".{slot.__name__}"))
        except AttributeError:
            continue
    return b"".join(parts)


def attributes_of(value: object) -> dict[str, Any]:
    """The ``__dict__`` of an instance, read past a ``__getattribute__`` or property that shows another."""
    for base in type(value).__mro__:
        getter = vars(base).get("__dict__")
        if type(getter) is GetSetDescriptorType:
            found: dict[str, Any] = getter.__get__(value)
            return found
    if type(value).__dictoffset__:
        raise UncacheableError(f"a {type(value).__qualname__} hides its own attributes")
    return {}


def _content(walk: Walk, value: Any, base: type) -> bytes:
    """What a subclass of a built-in type holds, read past anything it overrides."""
    if base is dict:
        return _pairs(walk, list(dict.items(value)))
    if base is list or base is tuple:
        return _items(walk, list(base.__iter__(value)))
    if base is set or base is frozenset:
        return _members(walk, list(base.__iter__(value)))
    if base is int:
        return encode(int.__add__(value, 0))
    return ENCODERS[base](value, 0)


def _content_base(kind: type) -> type | None:
    return next((base for base in _BASES if issubclass(kind, base)), None)


def _slots(kind: type) -> list[MemberDescriptorType]:
    return [
        item
        for base in kind.__mro__
        if base.__flags__ & _HEAP_TYPE
        for item in vars(base).values()
        if type(item) is MemberDescriptorType and item.__objclass__ is base
    ]


def _hides_state(kind: type) -> bool:
    """Whether instances are larger than their visible parts."""
    base = _content_base(kind) or object
    visible = base.__basicsize__ + _POINTER * len(_slots(kind))
    if kind.__dictoffset__ not in (0, -1, base.__dictoffset__):  # -1: outside the instance
        visible += _POINTER
    if kind.__weakrefoffset__ > 0 and base.__weakrefoffset__ <= 0:
        visible += _POINTER
    return kind.__basicsize__ > visible or (base is object and kind.__itemsize__ > 0)


WRITERS[tuple] = _tuple
WRITERS[list] = lambda walk, value, label: walk.node(value, _items, label)
WRITERS[dict] = _dict
WRITERS[set] = lambda walk, value, label: walk.node(value, _members, label)
WRITERS[frozenset] = lambda walk, value, label: b"f" + _members(walk, value)
WRITERS[bytearray] = lambda walk, value, label: walk.node(value, lambda _, value: b"y" + encode(value), label)
WRITERS[slice] = _slice
WRITERS[MappingProxyType] = _proxy
WRITERS[property] = _accessors
WRITERS[staticmethod] = _wrapped
WRITERS[classmethod] = _wrapped
WRITERS[type] = _class
FALLBACKS.append((type, _class))
FALLBACKS.append((object, _instance))
