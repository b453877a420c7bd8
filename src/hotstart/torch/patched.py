"""What somebody has put into the libraries that a model is made of.

A fingerprint stops at installed distributions: ``torch.nn.Linear`` counts by name and
by what was put into the class. But its ``forward`` calls ``F.linear``, and whoever
replaces that, or ``apply_rotary_pos_emb`` in a model of transformers, or registers an
attention function there, changes the result without touching the model. So the
namespaces of the libraries' modules that the model's classes come from are searched for
what is not the library's own: functions and classes from elsewhere count by content,
the library's own under another name count by both names.

For torch these are ``torch.nn.functional``, ``torch`` itself and ``torch.Tensor``; for
other libraries the modules of the classes and everything of the same distribution that
is reached from there, with plain values (flags) and registries.
"""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FunctionType

import torch

from ..errors import UncacheableError
from ..keys import distributions, installed
from ..keys.walk import PLAIN, Walk
from .reasons import NotHotError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

#: A library that leads to more modules of its own than this is not searched to the end: it is refused.
_MODULES = 2000

_TORCH = distributions.owner(torch.__file__)
#: Dynamo wraps this one when it is loaded, and it computes nothing.
_REWRAPPED = frozenset(("manual_seed",))
_SKIPPED = frozenset(("__name__", "__doc__", "__file__", "__cached__", "__package__", "__builtins__", "__path__"))


def patches(classes: Iterable[type]) -> list[tuple[str, str]]:
    """Where, and what: sorted. Raises NotHotError for a patch that cannot be fingerprinted."""
    found: dict[str, str] = {}
    for module in (torch.nn.functional, torch):
        for name, value in list(vars(module).items()):
            kind = type(value)
            if (kind is FunctionType or kind is BuiltinFunctionType) and name not in _REWRAPPED:
                _callable(found, module.__name__, name, value)
    for name, value in installed.foreign_members(torch.Tensor):
        found[f"torch.Tensor.{name}"] = value if isinstance(value, str) else _content(value, f"torch.Tensor.{name}")
    for module_name in _reached(classes):
        _namespace(found, module_name)
    return sorted(found.items())


def _reached(classes: Iterable[type]) -> list[str]:
    """Modules of libraries other than torch and Python that the classes come from, and what those lead to."""
    queue = []
    seen: set[str] = set()
    for cls in classes:
        for base in cls.__mro__:
            if base.__module__ not in seen:
                seen.add(base.__module__)
                if _other_library(base.__module__) is not None:
                    queue.append(base.__module__)
    for name in queue:  # grows while it is read
        home = _other_library(name)
        for value in list(vars(sys.modules[name]).values()):
            if type(value) is FunctionType or isinstance(value, type):
                above = value.__module__
                if isinstance(above, str) and above not in seen:
                    seen.add(above)
                    if _other_library(above) == home:
                        queue.append(above)
        if len(queue) > _MODULES:
            raise NotHotError(f"{name} leads to more than {_MODULES} modules of its library")
    return queue


def _other_library(name: str) -> str | None:
    module = sys.modules.get(name)
    owner = distributions.module_owner(module) if module is not None else None
    return None if owner in (_TORCH, distributions.PYTHON) else owner


def _namespace(found: dict[str, str], module: str) -> None:
    for name, value in list(vars(sys.modules[module]).items()):
        if name in _SKIPPED:
            continue
        if type(value) is FunctionType or isinstance(value, type | BuiltinFunctionType):
            _callable(found, module, name, value)
        elif type(value) in (bool, int, float, str):
            found[f"{module}.{name}"] = f"{type(value).__name__} {value}"
        elif type(value) not in PLAIN:
            for at, held in _registered(value):
                if type(held) is FunctionType or isinstance(held, type):
                    _callable(found, f"{module}.{name}", at, held)


def _registered(value: Any) -> list[tuple[str, Any]]:
    """What a dict, or an object with dicts in it, holds by name: how libraries keep choices of implementations."""
    tables = [value] if isinstance(value, dict) else []
    if not tables and not callable(value):
        for owner in (value, type(value)):
            try:
                tables += [item for item in vars(owner).values() if isinstance(item, dict)]
            except TypeError:
                continue
    return [(name, held) for table in tables for name, held in list(dict.items(table)) if type(name) is str]


def _callable(found: dict[str, str], where: str, name: str, value: Any) -> None:
    own = value.__name__ if type(value) is not FunctionType else value.__code__.co_name
    if type(value) is FunctionType:
        foreign = distributions.owner(value.__code__.co_filename) is None and value.__code__.co_filename[:1] != "<"
    elif isinstance(value, type):
        module = sys.modules.get(value.__module__)
        foreign = module is not None and distributions.module_owner(module) is None
    else:
        foreign = False
    if foreign:
        found[f"{where}.{name}"] = _content(value, f"{where}.{name}")
    elif own != name:
        found[f"{where}.{name}"] = f"{value.__module__}:{getattr(value, '__qualname__', own)}"


def _content(value: Any, where: str) -> str:
    try:
        return Walk(value).digest()
    except UncacheableError as error:
        raise NotHotError(f"{where} was replaced by something that cannot be fingerprinted ({error})") from None
