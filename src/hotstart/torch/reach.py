"""Which names of libraries a model's call goes through: for the key, and to be looked at again at every call.

A fingerprint stops at installed distributions. But ``nn.Sigmoid`` calls ``torch.sigmoid``
and a model of transformers calls functions two modules away, and whoever replaces one of
these changes the result without touching the model. So the code of the library's
functions that a model uses is followed from name to name, within its distribution, by
the names that it mentions. No bytecode is read: a name that is mentioned counts whatever
is done with it, which errs towards more.
"""

from __future__ import annotations

from types import CodeType, FunctionType, ModuleType

import torch

from ..keys.functions import distributions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    #: A namespace, how people call it, and a name in it.
    Place = tuple[dict[str, Any], str, str]

#: Functions that are followed. A model uses some dozens; what is behind thousands is the whole library.
_LIMIT = 2000

#: Per code object, which never changes.
_mentioned: dict[CodeType, frozenset[str]] = {}
_CODES = 16384

#: Dynamo wraps these when it is loaded, and they compute nothing.
_REWRAPPED = frozenset(("manual_seed",))
#: Methods that make, show, copy and save an object: no call goes through them.
_NOT_CALLED = frozenset(
    (
        *("__init__", "__repr__", "extra_repr", "reset_parameters", "_reset_parameters", "__setstate__"),
        *("__getstate__", "__reduce_ex__", "__deepcopy__", "_load_from_state_dict", "_save_to_state_dict"),
    )
)
#: Modules that every function of torch mentions and that compute nothing: dispatch to subclasses, scripting.
_NOT_FOLLOWED = frozenset(("torch.overrides", "torch.nn.init", "torch._jit_internal", "torch._tensor", "torch.version"))


def places(functions: Iterable[FunctionType], classes: Iterable[type]) -> list[Place]:
    """The places in libraries where these functions, and the methods of these classes, find what they call."""
    waiting = list(functions)
    for cls in classes:
        for base in cls.__mro__:
            if base in (torch.nn.Module, torch.Tensor, object):
                continue
            for name, item in list(vars(base).items()):
                method = _unwrapped(item) if name not in _NOT_CALLED else None
                if method is not None:
                    waiting.append(method)
    found: dict[tuple[int, str], Place] = {}
    seen: set[CodeType] = set()
    while waiting and len(seen) < _LIMIT:
        function = waiting.pop()
        code = function.__code__
        if code in seen:
            continue
        seen.add(code)
        home = distributions.owner(code.co_filename)
        namespace = function.__globals__
        if home is None or home == distributions.PYTHON or namespace.get("__name__") in _NOT_FOLLOWED:
            continue
        mentioned = _names(code)
        for name in mentioned & namespace.keys():
            value = namespace[name]
            _add(found, namespace, name, value, home, waiting)
            if isinstance(value, ModuleType) and _is_followed(value, home):
                inner = vars(value)
                for part in mentioned & inner.keys():
                    _add(found, inner, part, inner[part], home, waiting)
    return list(found.values())


def _is_followed(module: ModuleType, home: str) -> bool:
    return module.__name__ not in _NOT_FOLLOWED and distributions.module_owner(module) == home


def _add(
    found: dict[tuple[int, str], Place], namespace: dict[str, Any], name: str, value: Any, home: str, waiting: list[Any]
) -> None:
    at = (id(namespace), name)
    if at in found or name in _REWRAPPED or name[:2] == "__" or isinstance(value, _VALUES):
        return
    if isinstance(value, ModuleType) and value.__name__ in _NOT_FOLLOWED:
        return
    if type(value) is FunctionType:
        if value.__module__ in _NOT_FOLLOWED and distributions.owner(value.__code__.co_filename) == home:
            return
        waiting.append(value)
    found[at] = (namespace, f"{namespace.get('__name__')}.{name}", name)


#: Names of these are no way to change what is computed but by replacing the library's own vocabulary.
_VALUES = (torch.dtype, torch.layout, torch.memory_format)


def _unwrapped(item: Any) -> FunctionType | None:
    if isinstance(item, staticmethod | classmethod):
        item = item.__func__
    elif isinstance(item, property):
        item = item.fget
    return item if type(item) is FunctionType else None


def _names(code: CodeType) -> frozenset[str]:
    """The names that a code object and those in it load: globals and attributes alike."""
    found = _mentioned.get(code)
    if found is None:
        inner = [_names(item) for item in code.co_consts if isinstance(item, CodeType)]
        if len(_mentioned) >= _CODES:
            _mentioned.clear()
        found = _mentioned[code] = frozenset(code.co_names).union(*inner)
    return found
