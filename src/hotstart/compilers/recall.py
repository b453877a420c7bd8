"""``recall``: a function's fingerprint, taken again in a fraction of the time when nothing it reads has changed.

A fingerprint walks all that a function reaches and hashes it: some 20 µs a function,
at every call of a kernel language's ``make()``. For the plainest functions all that
can change can be listed instead: their code, names, defaults and closures, what the
names they read are bound to, and the source file. If each of these is the very same
object as last time (or equal plain data), so is the fingerprint.

Everything else (classes, instances, methods, annotations, attributes, modules taken
whole) goes to ``fingerprint`` itself. So does a list that does not match. The tests
hold the two functions to the same answer.
"""

from __future__ import annotations

import builtins
import os
import sys
from operator import is_
from types import BuiltinFunctionType, FunctionType, ModuleType

from ..errors import UncacheableError
from ..keys.digest import encode
from ..keys.functions import distributions, fingerprint, installed
from ..keys.functions.bytecode import facts_of
from ..keys.functions.modules import leaf
from ..keys.functions.walk import ABSENT, DESCRIPTIONS, PLAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

    #: For each source file inode, size and times.
    Versions = dict[str, tuple[int, int, int, int]]

#: Functions remembered, and for each the states it was seen in: one made anew with other constants is another state.
_CODES = 1024
_STATES = 8

#: A function that reaches more than this is not worth listing, and each nests a few calls deeper.
_MOST = 64

_BUILTINS = frozenset(value for value in vars(builtins).values() if isinstance(value, type))

_known: dict[int, list[tuple[_State, str]]] = {}


class _Code:
    """What never changes about a code object, as long as the installed distributions do not."""

    __slots__ = ("code", "filename", "owned", "refs")

    #: Kept, so that its id is not given to another.
    code: CodeType
    filename: str
    #: Whether a distribution's file defines it.
    owned: bool
    #: The names it reads and how far; None when it does what cannot be listed.
    refs: tuple[tuple[str, tuple[str, ...]], ...] | None


_codes: dict[int, _Code] = {}
_generation = -1


def _look_at(code: CodeType) -> _Code:
    known = _Code()
    known.code, known.filename = code, code.co_filename
    known.owned = distributions.owner(code.co_filename) is not None
    facts = facts_of(code)
    refs = [(root, chain) for root, chain, _ in facts.refs if type(root) is str]
    # Descriptions that some code reads count of everything the walk meets, so the walk has to meet it.
    odd = facts.objects or facts.unseen or DESCRIPTIONS & facts.attributes or len(refs) != len(facts.refs)
    known.refs = None if odd or not code.co_filename.startswith("/") else tuple(refs)
    if len(_codes) >= _CODES:
        _codes.clear()
    _codes[id(code)] = known
    return known


class _NotPlain(Exception):  # noqa: N818  # a turn in the road, not an error
    """Something whose state cannot be listed here."""


class _State:
    """All that the fingerprint of one function depends on, in an order that follows from its code."""

    __slots__ = ("_seen", "_versions", "files", "values")

    def __init__(self, function: FunctionType, versions: Versions) -> None:
        """Raises _NotPlain, UncacheableError."""
        self.values: list[object] = []
        self.files: Versions = {}
        self._versions = versions
        self._seen: dict[int, int] = {}
        self._function(function)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _State) or self.files != other.files or len(self.values) != len(other.values):
            return False
        return all(map(is_, self.values, other.values)) or all(map(_same, self.values, other.values))

    __hash__ = None  # type: ignore[assignment]  # how Python says "not hashable"

    def _function(self, function: FunctionType, *, inner: bool = False) -> None:
        code = function.__code__
        known = _codes.get(id(code)) or _look_at(code)
        if known.owned:
            token = installed.token(function)
            if token is None:
                raise _NotPlain  # made by a library: a wrapper, a closure
            self.values.append(token)
            return
        seen = self._seen
        number = seen.get(id(function), -1)
        if number >= 0:
            self.values.append(number)
            return
        number = seen[id(function)] = len(seen)
        closure, defaults, named = function.__closure__, function.__defaults__, function.__kwdefaults__
        if known.refs is None or function.__dict__ or _annotated(function) or (inner and closure) or number > _MOST:
            raise _NotPlain  # in a function further in, a cell may be shared; that is part of a fingerprint
        self.values += (number, code, function.__name__, function.__qualname__, defaults is None, named is None)
        filename = known.filename
        if filename not in self.files:
            if filename not in self._versions:
                self._versions[filename] = _version(filename)
            self.files[filename] = self._versions[filename]
        if defaults:
            self._plain(defaults)
        if named:
            self._plain(tuple(sorted(named.items())))
        if closure:
            self._closure(function)
        if known.refs:
            # Not every release of the type stubs knows this attribute.
            outer: dict[str, Any] = function.__getattribute__("__builtins__")
            namespace = function.__globals__
            for name, chain in known.refs:
                value = namespace.get(name, ABSENT)
                self._value(outer.get(name, ABSENT) if value is ABSENT else value, chain)

    def _closure(self, function: FunctionType) -> None:
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:
                value = ABSENT
            if type(value) not in PLAIN and value is not ABSENT:
                raise _NotPlain
            self.values.append(value)

    def _plain(self, values: Any) -> None:
        self.values.append(len(values))
        for value in values:
            if type(value) is tuple:
                self._plain(value)
            elif type(value) in PLAIN:
                self.values.append(value)
            else:
                raise _NotPlain

    def _value(self, value: Any, chain: tuple[str, ...]) -> None:
        """What a name stands for, modules followed along the attributes that are read of them."""
        while chain and type(value) is ModuleType:
            if chain[0] not in vars(value):
                raise _NotPlain  # it may be made on demand
            value = vars(value)[chain[0]]
            chain = chain[1:]
        kind = type(value)
        if kind in PLAIN or value is ABSENT or (kind is type and value in _BUILTINS):
            self.values.append(value)
        elif kind is FunctionType and value is not os.getenv:
            self._function(value, inner=True)
            if chain:
                self.values.append(leaf(value, chain))
        elif kind is BuiltinFunctionType and value is not globals and isinstance(value.__self__, ModuleType):
            self.values.append(value)
        elif kind is tuple:
            self._plain(value)
        elif kind is dict and id(value) not in self._seen:
            self._seen[id(value)] = len(self._seen)
            self._plain(tuple(value.items()))
        else:
            raise _NotPlain


def _annotated(function: FunctionType) -> bool:
    return bool(function.__annotations__)


if sys.version_info >= (3, 14):

    def _annotated(function: FunctionType) -> bool:
        return function.__annotate__ is not None  # looking at __annotations__ would run it


def _same(now: object, then: object) -> bool:
    return now is then or (type(now) is type(then) and type(now) in PLAIN and encode(now) == encode(then))


def _version(filename: str) -> tuple[int, int, int, int]:
    try:
        status = os.stat(filename)
    except OSError:
        raise _NotPlain from None  # its text, if there is any, is somewhere else
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def recall(function: Any, versions: Versions | None = None) -> str:
    """``hotstart.fingerprint(function)``, raising what it raises.

    ``versions`` remembers the state of source files for the other functions of the same key.
    """
    global _generation
    if type(function) is not FunctionType:
        return fingerprint(function)
    distributions.refresh()
    if _generation != distributions.generation:
        _codes.clear()
        _generation = distributions.generation
    try:
        state = _State(function, {} if versions is None else versions)
    except (_NotPlain, UncacheableError):
        return fingerprint(function)
    code = function.__code__
    states = _known.get(id(code))
    if states is not None:
        for known, digest in states:
            if known == state:
                return digest
    digest = fingerprint(function)
    if states is None:
        if len(_known) >= _CODES:
            _known.clear()
        states = _known[id(code)] = []
    states.insert(0, (state, digest))  # the state keeps the code, so its id is not given to another
    del states[_STATES:]
    return digest
