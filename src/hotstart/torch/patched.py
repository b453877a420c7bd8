"""What somebody has put into the libraries that a model is made of.

A fingerprint stops at installed distributions: ``torch.nn.Linear`` counts by name and
by what was put into the class. But its ``forward`` calls ``F.linear``, and whoever
replaces that, or ``apply_rotary_pos_emb`` in a model of transformers, or registers an
attention function there, changes the result without touching the model. So the
namespaces of the libraries' modules that the model's classes come from are searched for
what is not the library's own: functions and classes from elsewhere count by content,
the library's own under another name count by both names.

For torch these are ``torch.nn.functional``, ``torch`` itself and ``torch.Tensor``; for
other libraries the modules of the classes, and those of the same distribution whose
functions they use, with plain values (flags) and registries. And for all of them the
names that the code of the model's layers goes through, as far as ``reach`` follows it.
"""

from __future__ import annotations

import functools
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace

import torch

from ..errors import UncacheableError
from ..keys.functions import distributions, installed
from ..keys.functions.walk import Walk
from .reasons import NotHotError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .reach import Place

_TORCH = distributions.owner(torch.__file__)
#: Dynamo wraps this one when it is loaded, and it computes nothing.
_REWRAPPED = frozenset(("manual_seed",))
#: Values that libraries draw anew in every process and compute nothing with: each line is a claim.
_DRAWN = frozenset(
    (
        "transformers.utils.hub.SESSION_ID",
        *(f"torch.distributed._composable.contract.{name}_KEY" for name in ("REGISTRY", "STATE")),
    )
)


def patches(classes: Iterable[type], places: Iterable[Place], walks: list[Walk]) -> list[tuple[str, str]]:
    """Where, and what: sorted. Raises NotHotError for a patch that cannot be fingerprinted.

    What was fingerprinted for it is appended to ``walks``: a call has to see it change.
    """
    classes = list(classes)
    found: dict[str, str] = {}
    for module in (torch.nn.functional, torch):
        for name, value in list(vars(module).items()):
            kind = type(value)
            if (kind is FunctionType or kind is BuiltinFunctionType) and name not in _REWRAPPED:
                _callable(found, module.__name__, name, value, walks)
    for name, value in installed.foreign_members(torch.Tensor):
        where = f"torch.Tensor.{name}"
        found[where] = value if isinstance(value, str) else _content(value, where, walks)
    for module_name in _reached(classes):
        _namespace(found, module_name, walks)
    for namespace, where, name in places:
        if where not in found:
            _place(found, namespace, where, name, walks)
    return sorted(found.items())


def _place(found: dict[str, str], namespace: dict[str, Any], where: str, name: str, walks: list[Walk]) -> None:
    """One name that library code goes through: nothing to say of what is in its own place."""
    value = namespace[name]
    if type(value) is FunctionType or isinstance(value, type | BuiltinFunctionType):
        _callable(found, where.rpartition(".")[0], name, value, walks)
    elif isinstance(value, ModuleType):
        if value.__name__.rpartition(".")[2] != name:
            found[where] = f"module {value.__name__}"
        if distributions.module_owner(value) is None:
            found[where] = _content(value, where, walks)
    elif type(value) in (bool, int, float, str):
        if where not in _DRAWN:
            found[where] = f"{type(value).__name__} {value}"
    else:
        kind = type(value)
        home = sys.modules.get(kind.__module__)
        owner = distributions.module_owner(home) if home is not None else None
        if owner is None or kind in _MADE_BY_HAND:
            found[where] = _content(value, where, walks)
        else:
            found[where] = f"{kind.__module__}.{kind.__qualname__}"


#: Of Python's own classes, those that people put in the place of a function or module.
_MADE_BY_HAND = (SimpleNamespace, functools.partial, MethodType)


def _reached(classes: Iterable[type]) -> list[str]:
    """Modules of libraries other than torch and Python: of the classes, and of the functions that are used there."""
    names = dict.fromkeys(base.__module__ for cls in classes for base in cls.__mro__)
    near = {name: home for name in names if (home := _other_library(name)) is not None}
    found = dict(near)
    for name, home in near.items():
        for value in list(vars(sys.modules[name]).values()):
            if type(value) is FunctionType:
                above = value.__module__
                if isinstance(above, str) and above not in found and _other_library(above) == home:
                    found[above] = home
    return list(found)


def _other_library(name: str) -> str | None:
    module = sys.modules.get(name)
    owner = distributions.module_owner(module) if module is not None else None
    return None if owner in (_TORCH, distributions.PYTHON) else owner


def _namespace(found: dict[str, str], module: str, walks: list[Walk]) -> None:
    for name, value in list(vars(sys.modules[module]).items()):
        if name.startswith("__"):
            continue  # where the module is from, and what Dynamo puts beside the functions it has compiled
        if type(value) is FunctionType or isinstance(value, type | BuiltinFunctionType):
            _callable(found, module, name, value, walks)
        elif type(value) in (bool, int, float, str) and f"{module}.{name}" not in _DRAWN:
            found[f"{module}.{name}"] = f"{type(value).__name__} {value}"
        elif isinstance(value, dict) or _other_library(type(value).__module__) is not None:
            for at, held in _registered(value):
                if type(held) is FunctionType or isinstance(held, type):
                    _callable(found, f"{module}.{name}", at, held, walks)


def _registered(value: Any) -> list[tuple[str, Any]]:
    """What a dict, or an object with dicts in it, holds by name: how libraries keep choices of implementations."""
    tables = [value] if isinstance(value, dict) else []
    if not tables:
        for owner in (value, type(value)):
            held = getattr(owner, "__dict__", {})
            tables += [item for item in held.values() if isinstance(item, dict)]
    return [(name, held) for table in tables for name, held in list(dict.items(table)) if type(name) is str]


def _callable(found: dict[str, str], where: str, name: str, value: Any, walks: list[Walk]) -> None:
    own = value.__name__ if type(value) is not FunctionType else value.__code__.co_name
    if type(value) is FunctionType:
        foreign = distributions.owner(value.__code__.co_filename) is None and value.__code__.co_filename[:1] != "<"
    elif isinstance(value, type):
        module = sys.modules.get(value.__module__)
        foreign = module is not None and distributions.module_owner(module) is None
    else:
        foreign = False
    if foreign:
        found[f"{where}.{name}"] = _content(value, f"{where}.{name}", walks)
    elif own != name:
        found[f"{where}.{name}"] = f"{value.__module__}:{getattr(value, '__qualname__', own)}"


def _content(value: Any, where: str, walks: list[Walk]) -> str:
    walk = Walk(value)
    walks.append(walk)
    try:
        return walk.digest()
    except UncacheableError as error:
        raise NotHotError(f"{where} was replaced by something that cannot be fingerprinted ({error})") from None
