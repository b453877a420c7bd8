"""Modules: what an attribute of one stands for, and a module taken whole."""

from __future__ import annotations

import sys
from types import ModuleType

from ...errors import UncacheableError
from ..digest import encode_str
from . import distributions, doors, installed
from .walk import FALLBACKS, PLAIN, UNBOUND, WRITERS, Walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .references import Chain, Root

#: Where a module was found. Code that reads these goes on to read what lies beside it.
PLACES = frozenset(("__file__", "__path__", "__spec__", "__loader__", "__cached__"))
PLACE_REASON = (
    "is a path on this machine, and what is read there cannot be seen; put its content in the key "
    "(hotstart.project_fingerprint)"
)
_HOUSEKEEPING = PLACES | {"__builtins__", "__name__", "__package__", "__doc__", "__annotations__"}

#: With one of these in hand, code can reach what is refused by name.
_MASTER_KEYS = doors.MODULES.union(("posix", "nt", "posixpath", "ntpath", "genericpath", "_io", "_thread"))

#: Namespaces of torch operators that torch itself implements.
_OWN_OPERATORS = frozenset(("aten", "prim", "prims"))


class Token:
    """What stands for an attribute that is not to be looked at."""

    __slots__ = ("token",)

    def __init__(self, token: bytes) -> None:
        self.token = token


def attribute(walk: Walk, module: ModuleType, name: str) -> Any:
    """``module.name``, or a ``Token`` for it. Nothing is imported and no code of the module runs.

    Raises UncacheableError when it cannot be known without.
    """
    namespace = vars(module)
    if name in PLACES:
        raise UncacheableError(PLACE_REASON)
    if name in namespace:
        return namespace[name]
    kind = type(module)
    if name == "__dict__":
        return Token(_module(walk, module, f"{module.__name__}.__dict__"))
    if kind is not ModuleType and any(name in vars(base) for base in kind.__mro__):
        return getattr(module, name)  # a property, such as torch.backends.cudnn.enabled
    full = f"{module.__name__}.{name}"
    if full in sys.modules:
        return sys.modules[full]
    identity = distributions.module_owner(module)
    if identity is not None:
        if hasattr(kind, "__getattr__"):
            _check_operators(module, name)
        reason = doors.reason_against_name(module.__name__, (name,)) if identity == distributions.PYTHON else ""
        if reason:
            raise UncacheableError(reason)
        # A lazy attribute of a library (torch._dynamo): naming it must not import it.
        return Token(installed.named(identity, module.__name__, name))
    lazy = namespace.get("__getattr__")
    if lazy is not None:
        return Token(b"L" + encode_str(name) + walk.token(lazy, f"{module.__name__}.__getattr__"))
    if "__path__" in namespace:
        return Token(_not_loaded(full, namespace["__path__"]))
    return Token(UNBOUND)


def _check_operators(module: ModuleType, name: str) -> None:
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    space = name if kind == "torch._ops._Ops" else module.__name__.removeprefix("torch.ops.")
    if not kind.startswith("torch._ops.") or space not in _OWN_OPERATORS:
        raise UncacheableError(f"{module.__name__}.{name} is made on demand: what it is cannot be seen before")


def imported(root: Root, namespace: dict[str, Any]) -> Any:
    """The module that an import statement in a function binds, or what stands for it, in bytes."""
    if isinstance(root, str):
        raise TypeError("a global is not an import")
    _, name, level, top = root
    if level:
        package = namespace.get("__package__") or ""
        if not package:
            raise UncacheableError("a relative import in a module that knows no package")
        for _ in range(level - 1):
            package = package.rpartition(".")[0]
        name = f"{package}.{name}" if name else package
    elif top:
        name = name.partition(".")[0]
    try:
        module = sys.modules[name]
    except KeyError:
        above, _, _ = name.rpartition(".")
        path = getattr(sys.modules.get(above), "__path__", None) if above else None
        if above and path is None:
            raise UncacheableError("imports a module that is not loaded yet; import it first") from None
        return _not_loaded(name, path)
    return UNBOUND if module is None else module


def _not_loaded(name: str, path: Any) -> bytes:
    """A module that the code would import when it runs: a library's by name, the user's own not at all."""
    from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

    if path is None and (BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name)):
        return installed.named(distributions.PYTHON, name, "")
    spec = PathFinder.find_spec(name, path)
    if spec is None:
        return UNBOUND
    identity = distributions.owner(spec.origin) if spec.origin else None
    if identity is None:
        raise UncacheableError(f"would import {name}, which is not loaded yet; import it first")
    return installed.named(identity, name, "")


def leaf(value: Any, rest: Chain) -> bytes:
    """A plain value at the end of ``value.a.b`` where ``value`` is a library's object: its switches are state.

    ``torch.backends.cuda.matmul.allow_tf32`` is a property of an object without any
    state of its own. Only a library's properties are run; the user's count by content.
    """
    kind = value if isinstance(value, type) else type(value)
    try:
        if kind in (ModuleType, type) or installed.token(kind) is None:
            return b"-"
        for name in rest:
            value = getattr(value, name)
    except Exception:
        return b"-"  # whatever it is, the code that reads it gets the same
    return PLAIN[type(value)](value, 0) if type(value) in PLAIN else b"-"


def _module(walk: Walk, module: ModuleType, label: str) -> bytes:
    """A module that is passed on or looked into by computed names: a library's by name, any other whole."""
    identity = distributions.module_owner(module)
    if identity is None:
        return walk.node(module, _record_module, label)
    if identity == distributions.PYTHON and module.__name__ in _MASTER_KEYS:
        raise UncacheableError(
            f"the module {module.__name__} is used as a value, and what leads outside can be reached from it"
        )
    return installed.named(identity, module.__name__, "")


def _record_module(walk: Walk, module: ModuleType) -> bytes:
    return b"m" + whole(walk, vars(module), "")


def whole(walk: Walk, namespace: dict[str, Any], label: str) -> bytes:
    return walk.known(id(namespace)) or walk.node(namespace, _record_namespace, label)


def _record_namespace(walk: Walk, namespace: dict[str, Any]) -> bytes:
    parts = [b"g"]
    for name, value in list(namespace.items()):
        if name in _HOUSEKEEPING:
            continue
        if isinstance(value, ModuleType):
            identity = distributions.module_owner(value)
            if identity is not None:
                parts += (encode_str(name), installed.named(identity, value.__name__, ""))
                continue
        parts += (encode_str(name), walk.token(value, f"global {name}"))
    return b"".join(parts)


WRITERS[ModuleType] = _module
FALLBACKS.append((ModuleType, _module))
