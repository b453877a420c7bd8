"""The border: objects that an installed distribution defines, known by name instead of by content.

An object passes when its ``__module__`` and ``__qualname__`` lead back to the
object itself, the module belongs to a distribution, and its code comes from a file
of one. A function put in the place of a library's own (a monkeypatch) fails one of
these and is fingerprinted by its content.

What can be set in it without touching its code (``settings``) stands beside its name.

What stands behind the border is not looked at: state that a library's function
reads on its own account (torch's default dtype, NumPy's error mode) is for the key
to carry. The standard library's ``doors`` to the outside world are refused instead: a
fingerprint that leaves out the file, the clock or the code behind them would be
the same for different results.
"""

from __future__ import annotations

import os
import stat
import sys
from operator import attrgetter, is_
from types import FunctionType, ModuleType

from ...errors import UncacheableError
from ..digest import digest_of, encode_str
from . import distributions, settings
from .bytecode import facts_of
from .doors import reason_against

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The flag of a class that was made at run time; others are static data of the interpreter or an extension.
_HEAP_TYPE = 1 << 9

#: Wrappers around wrappers that are looked through.
_LAYERS = 8

_KNOWN: dict[int, _Known] = {}
_KNOWN_COUNT = 16384
_MEMBERS: dict[type, _Members] = {}
_generation = -1


class _Known:
    """What stands for one object, and what of it was looked at."""

    __slots__ = ("reason", "state", "token", "value")

    def __init__(self, value: Any, token: bytes, reason: str, state: list[object] | None) -> None:
        self.value = value
        self.token = token
        #: Why it is refused, if it is.
        self.reason = reason
        self.state = state


def token(value: Any) -> bytes | None:
    """The name of a function, class or built-in of an installed distribution; None if it is none.

    A function's name comes with what its code is and what is set in it. Raises
    UncacheableError for what opens a door to the outside world.
    """
    _forget_if_installed()
    known = _KNOWN.get(id(value))
    is_function = type(value) is FunctionType
    if known is None or known.value is not value or (known.state is not None and not _is_as_it_was(known)):
        found = _identify(value)
        if found is None:
            reason = reason_against(value) if is_function else ""
            if reason:  # under a name that is not its own, as ``functools.wraps`` gives
                raise UncacheableError(reason)
            return None
        identity, module, name = found
        written = named(identity, module, name + _made_as(value))
        state = None
        if is_function:
            state = settings.state_of(value)
            try:
                written += encode_str(settings.code_form(value)) + settings.settings_of(value)
            except settings.NotTheirsError:
                return None
            if settings.is_volatile(value):
                state = []
        reason = reason_against(value, module, name) if identity == distributions.PYTHON else ""
        known = _KNOWN[id(value)] = _Known(value, written, reason, state)
    if known.reason:
        raise UncacheableError(known.reason)
    return known.token


def _forget_if_installed() -> None:
    global _generation
    if _generation != distributions.generation or len(_KNOWN) >= _KNOWN_COUNT:
        _KNOWN.clear()
        _MEMBERS.clear()
        _generation = distributions.generation


def _is_as_it_was(known: _Known) -> bool:
    return known.state is not None and settings.is_same(known.value, known.state)


def named(identity: str, module: str, name: str) -> bytes:
    return b"@" + encode_str(identity) + encode_str(f"{module}:{name}")


def _identify(value: Any) -> tuple[str, str, str] | None:
    """Distribution, module and name of what is certainly that distribution's own."""
    if type(value) is FunctionType and distributions.owner(value.__code__.co_filename) is None:
        return None
    name = getattr(value, "__module__", None)
    if not isinstance(name, str):
        # A method table's functions know the module only through what they are bound to.
        bound_to = getattr(value, "__self__", None)
        if not isinstance(bound_to, ModuleType):
            return None
        name = bound_to.__name__
    module = sys.modules.get(name)
    if module is None:
        return None
    identity = distributions.module_owner(module)
    if identity is None:
        return None
    for attribute in ("__qualname__", "__name__"):
        path = getattr(value, attribute, None)
        if isinstance(path, str) and leads_to(module, path, value):
            return identity, name, path
    if isinstance(value, type) and not value.__flags__ & _HEAP_TYPE:
        return identity, name, value.__qualname__  # many static types are reachable under no name
    return None


def distribution_of(function: FunctionType) -> str | None:
    """The distribution whose file the code is from and whose module it sees; None for the user's own code."""
    found = distributions.owner(function.__code__.co_filename)
    if found is not None:
        module = sys.modules.get(function.__globals__.get("__name__", ""))
        if module is None or vars(module) is not function.__globals__:
            return None
    return found


def _made_as(value: Any) -> str:
    """What else tells the original from a wrapper that has taken its name, as ``functools.wraps`` lets it.

    ``F.gelu = torch.no_grad()(F.gelu)`` leads back to itself under gelu's name and in
    torch's code. The names of the code under each layer give it away.
    """
    if isinstance(value, type):
        return ""
    layers: list[str] = []
    inner = value
    while type(inner) is FunctionType and len(layers) < _LAYERS:
        layers.append(inner.__code__.co_qualname)
        inner = inner.__dict__.get("__wrapped__")
    if inner is not None:
        layers.append(type(inner).__qualname__)
    return "" if layers == [getattr(value, "__qualname__", None)] else " ".join(["", *layers])


def leads_to(module: ModuleType, path: str, value: object) -> bool:
    """Whether ``module`` holds ``value`` at ``path``. Looks into dictionaries only: nothing runs."""
    found: Any = module
    for name in path.split("."):
        try:
            found = vars(found)[name]
        except (TypeError, KeyError):
            return False
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if isinstance(found, property):
        return any(value is accessor for accessor in (found.fget, found.fset, found.fdel))
    return found is value


class _Members:
    """What was found in one class, and all that this depended on."""

    __slots__ = (
        "codes",
        "defaults",
        "found",
        "functions",
        "named",
        "names",
        "settable",
        "states",
        "values",
        "volatile",
    )

    names: tuple[str, ...]
    values: tuple[object, ...]
    #: Its functions, and those of its properties; of each the code and the defaults.
    functions: list[FunctionType]
    codes: list[object]
    defaults: list[object]
    named: list[object]
    #: Of these, the ones with more in them that can be set; and those with a default that can change as it is.
    settable: list[FunctionType]
    states: list[list[object]]
    volatile: list[tuple[FunctionType, bytes]]
    found: list[tuple[str, Any]]

    def holds(self, namespace: Any) -> bool:
        return (
            self.names == tuple(namespace)
            and all(map(is_, namespace.values(), self.values))
            and all(map(is_, map(_code_of, self.functions), self.codes))
            and all(map(is_, map(_defaults_of, self.functions), self.defaults))
            and all(map(is_, map(_named_of, self.functions), self.named))
            and all(map(settings.is_same, self.settable, self.states))
            and all(settings.settings_of(function) == written for function, written in self.volatile)
        )


_code_of = attrgetter("__code__")
_defaults_of = attrgetter("__defaults__")
_named_of = attrgetter("__kwdefaults__")


def foreign_members(cls: type) -> list[tuple[str, Any]]:
    """What may have been put into an installed class, by name, and as text what is set in it.

    That is: whatever belongs to no library, as it is; library functions of other names,
    as text. Generated methods (dataclasses, attrs) come from no file; they belong to the
    class when their globals are its module's, and are told by their code. A method that
    was not defined under its name (``__radd__ = __add__``, a wrapper) is told by the name
    it was defined under. Defaults of methods and plain public attributes make one text.
    """
    _forget_if_installed()
    namespace = vars(cls)
    known = _MEMBERS.get(cls)
    if known is None or not known.holds(namespace):
        known = _MEMBERS[cls] = _examine(cls)
    return known.found


def _examine(cls: type) -> _Members:
    known = _Members()
    known.names, known.values = tuple(vars(cls)), tuple(vars(cls).values())
    known.functions, known.settable, known.found, known.volatile = [], [], [], []
    module = sys.modules.get(cls.__module__)
    own = None if module is None else vars(module)
    prefix = cls.__qualname__ + "."
    texts: list[bytes] = []
    for at, item in zip(known.names, known.values, strict=True):
        for name, function in _functions_in(at, item):
            known.functions.append(function)
            if function.__kwdefaults__ or function.__code__.co_freevars not in ((), ("__class__",)):
                known.settable.append(function)
            code = function.__code__
            if distributions.owner(code.co_filename) is None:
                generated = code.co_filename[:1] == "<" and function.__globals__ is own
                known.found.append((name, facts_of(code).digest.hex() if generated else function))
                continue
            try:
                written = settings.settings_of(function)
            except settings.NotTheirsError:
                known.found.append((name, function))
                continue
            if settings.is_volatile(function):
                known.volatile.append((function, written))
            if code.co_qualname != prefix + at:
                defined_as = f"{function.__module__}:{function.__qualname__}{_made_as(function)}"
                known.found.append((name, f"{defined_as} {digest_of(written)}" if written else defined_as))
            elif written:
                texts.append(encode_str(name) + written)
        if at[:1] != "_":  # what begins so is the library's own to change: counters, caches, what was warned of
            try:
                written = settings.attribute_form(item)
            except settings.NotTheirsError:
                known.found.append((at, item))
                continue
            if written:
                texts.append(encode_str(at) + written)
    if texts:
        known.found.append(("", digest_of(b"".join(sorted(texts)))))
    known.codes, known.defaults = [*map(_code_of, known.functions)], [*map(_defaults_of, known.functions)]
    known.named = [*map(_named_of, known.functions)]
    known.states = [settings.state_of(function) for function in known.settable]
    # Libraries fill classes in the order of a set, too (sympy does).
    known.found.sort(key=lambda member: member[0])
    return known


def _functions_in(name: str, item: Any) -> list[tuple[str, FunctionType]]:
    """The functions in a member of a class, by a name for each: those of a property can be changed one by one."""
    kind = type(item)
    if kind is FunctionType:
        return [(name, item)]
    if kind is staticmethod or kind is classmethod:
        found = [(name, item.__func__)]
    elif kind is property:
        found = [(name, item.fget), (f"{name} set", item.fset), (f"{name} del", item.fdel)]
    else:
        return []
    return [(each, function) for each, function in found if type(function) is FunctionType]


def native_token(value: Any) -> bytes | None:
    """A function or class of the user's own compiled module: its file's digest and its name; None if it is none."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None and isinstance(getattr(value, "__self__", None), ModuleType):
        module = value.__self__
    filename = getattr(module, "__file__", None)
    if module is None or not isinstance(filename, str) or not filename.endswith((".so", ".pyd")):
        return None
    for attribute in ("__qualname__", "__name__"):
        path = getattr(value, attribute, None)
        if isinstance(path, str) and leads_to(module, path, value):
            return b"X" + encode_str(_file_digest(filename)) + encode_str(path)
    return None


_files: dict[str, tuple[tuple[int, int, int], str]] = {}


def _file_digest(filename: str) -> str:
    try:
        status = os.stat(filename)
        if not stat.S_ISREG(status.st_mode):
            raise UncacheableError("its compiled module is no longer a file")
        known = _files.get(filename)
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        if known is None or known[0] != version:
            with open(filename, "rb") as file:
                known = _files[filename] = (version, digest_of(file.read()))
    except OSError as error:
        raise UncacheableError(f"its compiled module cannot be read ({error.strerror})") from None
    return known[1]
