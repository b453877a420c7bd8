"""Functions and the names they reach, as ``keys.functions.walk`` writes them."""

from __future__ import annotations

import builtins
import os
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)

from ...errors import UncacheableError
from ..digest import encode_str
from . import doors, installed, modules
from .bytecode import facts_of
from .source import source_digest
from .walk import ABSENT, DESCRIPTIONS, PLAIN, UNBOUND, WRITERS, Walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType
    from typing import Any

    from .bytecode import CodeFacts
    from .references import Chain, Root

#: Facts about annotations that are strings, by their text.
_ANNOTATIONS: dict[str, CodeType | None] = {}
_ANNOTATIONS_COUNT = 4096


def _function(walk: Walk, function: FunctionType, label: str) -> bytes:
    return installed.token(function) or walk.node(function, _record_function, label)


def _record_function(walk: Walk, function: FunctionType) -> bytes:
    """Name, code, defaults, closure, attributes; and for the user's own code all that it reads."""
    code = function.__code__
    facts = facts_of(code)
    parts = [b"F", encode_str(function.__name__), encode_str(function.__qualname__), facts.digest]
    token = walk.token
    library = installed.distribution_of(function)
    if library is not None and code.co_qualname == "singledispatch.<locals>.wrapper":
        # Its closure also holds a cache of weak references; the registry is what it does.
        return b"".join((*parts, token(dict(function.registry), "registry")))  # type: ignore[attr-defined]  # of singledispatch
    defaults, named_defaults, attributes = function.__defaults__, function.__kwdefaults__, function.__dict__
    if defaults:
        names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        parts.append(b"d%d:" % len(defaults))
        parts += [token(value, f"default {name}") for name, value in zip(names, defaults, strict=False)]
    if named_defaults:
        parts.append(b"k%d:" % len(named_defaults))
        for name in sorted(named_defaults):
            parts += (encode_str(name), token(named_defaults[name], f"default {name}"))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        # Two functions that share a cell see each other's assignments: the cell has an identity.
        parts.append(b"c%d;" % walk.cells.setdefault(id(cell), len(walk.cells)))
        try:
            value = cell.cell_contents
        except ValueError:
            parts.append(UNBOUND)
            continue
        chains = facts.free.get(name, frozenset())
        if isinstance(value, ModuleType) and chains and () not in chains:
            parts += [_reached(walk, value, chain, name, facts, function.__globals__) for chain in sorted(chains)]
        else:
            parts.append(token(value, f"closure {name}"))
    if attributes:
        parts.append(b"a%d:" % len(attributes))
        for name in sorted(attributes):
            parts += (encode_str(name), token(attributes[name], f"attribute {name}"))
    if library is None:
        _own_code(walk, function, facts, parts)
    else:
        # A closure or wrapper made by a library: what its code reads of its module counts through the library.
        parts.append(encode_str(library))
    return b"".join(parts)


def _own_code(walk: Walk, function: FunctionType, facts: CodeFacts, parts: list[bytes]) -> None:
    namespace = function.__globals__
    parts.append(encode_str(source_digest(facts.code, namespace, walk.versions)))
    if facts.unseen:
        walk.refuse("", f"reads {', '.join(facts.unseen)}, which lead to what cannot be seen from here")
    walk.described |= DESCRIPTIONS & facts.attributes
    walk.called |= doors.METHODS & facts.attributes
    parts += [walk.token(item, "a constant") for item in facts.objects]
    lazy = getattr(function, "__annotate__", None)  # 3.14: annotations are code that runs on demand
    if lazy is not None:
        parts.append(walk.token(lazy, "annotations"))
    elif function.__annotations__:
        parts.append(annotated(walk, function.__annotations__, namespace))
    untyped: Any = function  # typeshed knows __builtins__ only from 3.13 on
    _references(walk, facts, namespace, untyped.__builtins__, parts)


def annotated(walk: Walk, found: Mapping[str, object], namespace: dict[str, Any]) -> bytes:
    """Annotations by value: kernel languages compile them. A string counts with what its names stand for."""
    parts = [b"n%d:" % len(found)]
    for name, value in found.items():
        parts += (encode_str(name), walk.token(value, f"annotation {name}"))
        texts = _texts(value)
        for text in texts:
            code = _annotation_code(text)
            if code is not None:
                _references(walk, facts_of(code), namespace, vars(builtins), parts)
                # Strings in strings: ``"list['T']"``, or ``'T'`` where all annotations are strings.
                texts += [inner for inner in code.co_consts if type(inner) is str and len(inner) < len(text)]
    return b"".join(parts)


def _texts(annotation: Any) -> list[str]:
    """The strings in an annotation that stand for types."""
    if type(annotation) is str:
        return [annotation]
    if type(annotation).__name__ == "ForwardRef":
        return [annotation.__forward_arg__]
    arguments = getattr(annotation, "__args__", None) if type(annotation) is not type else None
    return [text for item in arguments for text in _texts(item)] if type(arguments) is tuple else []


def _annotation_code(text: str) -> CodeType | None:
    try:
        return _ANNOTATIONS[text]
    except KeyError:
        if len(_ANNOTATIONS) >= _ANNOTATIONS_COUNT:
            _ANNOTATIONS.clear()
        code = None
        try:
            code = compile(text, "<annotation>", "eval", dont_inherit=True)
        except (SyntaxError, ValueError):
            pass  # free text, which is itself in the record
        _ANNOTATIONS[text] = code
        return code


def _references(
    walk: Walk, facts: CodeFacts, namespace: dict[str, Any], outer: Mapping[str, Any], parts: list[bytes]
) -> None:
    """The value of every name that the code reads, in the order of ``facts.refs``."""
    for root, chain, label in facts.refs:
        if type(root) is str:
            value = namespace.get(root, ABSENT)
            if value is ABSENT:
                value = outer.get(root, ABSENT)
                if value is _GLOBALS:
                    parts.append(modules.whole(walk, namespace, "globals()"))
            elif root in modules.PLACES:
                parts.append(walk.refuse(root, modules.PLACE_REASON))
                continue
            # A name that is not bound now would raise NameError now: that is part of what the code does.
            parts.append(UNBOUND if value is ABSENT else _reached(walk, value, chain, label, facts, namespace))
        else:
            parts.append(_imported(walk, root, chain, label, facts, namespace))


_GLOBALS = builtins.globals


def _imported(walk: Walk, root: Root, chain: Chain, label: str, facts: CodeFacts, namespace: dict[str, Any]) -> bytes:
    try:
        found = modules.imported(root, namespace)
    except UncacheableError as error:
        return walk.refuse(f"import {label}", error)
    if not isinstance(found, bytes):
        return _reached(walk, found, chain, label, facts, namespace)
    reason = doors.reason_against_name(root[1], chain) if isinstance(root, tuple) and not root[2] else ""
    return walk.refuse(label, reason) if reason else found


def _reached(walk: Walk, value: Any, chain: Chain, label: str, facts: CodeFacts, namespace: dict[str, Any]) -> bytes:
    """What ``value.a.b.c`` is: attributes are followed through modules, the first other value counts whole."""
    if type(value) in PLAIN:
        return walk.token(value, label)
    rest = chain
    while rest and isinstance(value, ModuleType):
        try:
            value = modules.attribute(walk, value, rest[0])
        except UncacheableError as error:
            return walk.refuse(label, error)
        if type(value) is modules.Token:
            return value.token
        rest = rest[1:]
    if (value is os.environ or value is os.getenv) and _is_genuine(value):
        return _environment(walk, value, rest, label, facts, namespace)
    if not rest:
        return walk.token(value, f"global {label}")
    reason = doors.reason_against_member(value, rest[0])
    if reason:
        return walk.refuse(label, reason)
    return walk.token(value, f"global {label.rsplit('.', len(rest))[0]}") + modules.leaf(value, rest)


def _is_genuine(value: Any) -> bool:
    """Whether this is the standard library's own: somebody may have put another in its place."""
    if type(value) is FunctionType:
        return installed.distribution_of(value) is not None
    return f"{type(value).__module__}.{type(value).__qualname__}" == "os._Environ"


#: What may be asked of os.environ for one name.
_ASKING = frozenset((("get",), ("pop",), ("setdefault",), ("__getitem__",), ("__contains__",), ()))


def _environment(
    walk: Walk, value: object, rest: Chain, label: str, facts: CodeFacts, namespace: dict[str, Any]
) -> bytes:
    """The variables that are read, by value; a refusal unless every name is a constant."""
    asked = facts.asked.get(label, frozenset((None,)))
    if rest in _ASKING and (value is not os.getenv or not rest):
        names = []
        for use in sorted(asked, key=str):
            name = namespace.get(use[1]) if use is not None and use[0] == "global" else use and use[1]
            if type(name) is not str:
                break
            names.append(name)
        else:
            return b"E%d:" % len(names) + b"".join(
                encode_str(name) + walk.token(os.environ.get(name), label) for name in names
            )
    return walk.refuse(label, "reads environment variables whose names are not constants in the code")


def _builtin(walk: Walk, value: BuiltinFunctionType, label: str) -> bytes:
    """A function written in C: its distribution's, its compiled module's, or a method of some object."""
    found = installed.token(value) or installed.native_token(value)
    if found is not None:
        return found
    owner = value.__self__
    if owner is None or isinstance(owner, ModuleType):
        raise UncacheableError(f"the built-in {value.__name__} belongs to no module that can be identified")
    reason = doors.reason_against_member(owner, value.__name__)
    if reason:
        raise UncacheableError(reason)
    return b"B" + encode_str(value.__name__) + walk.token(owner, label)


def _descriptor(walk: Walk, value: Any, label: str) -> bytes:
    """A method, getter or slot that the interpreter made for a class."""
    reason = doors.reason_against_member(value.__objclass__, value.__name__)
    if reason:
        raise UncacheableError(reason)
    return b"D" + encode_str(value.__name__) + walk.token(value.__objclass__, label)


WRITERS[FunctionType] = _function
WRITERS[BuiltinFunctionType] = _builtin
WRITERS[type([].__add__)] = _builtin  # method-wrapper
# Methods, slot wrappers, class methods, getters and slots.
for _kind in (
    *(type(list.append), type(list.__add__), type(dict.__dict__["fromkeys"])),
    *(GetSetDescriptorType, MemberDescriptorType),
):
    WRITERS[_kind] = _descriptor
