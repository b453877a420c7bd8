"""One walk over everything a function depends on: numbering, records, refusals.

Whatever has an identity (functions, classes, instances, lists …) is a node. Nodes
are numbered in the order in which the walk first meets them and written in that
order, each as one record that names others by their number: cycles and shared
objects need nothing special, depth costs no stack, and one entry point gives one
byte string, whatever the addresses and the hash seed.

    stream  = prefix token (length ":" record)*
    token   = value of keys.digest            data without identity
            | "#" n ";"                       the n-th node
            | "@" str str                     an installed distribution's own, by name
            | "X" str str                     a function of a compiled module, by the module's digest
            | "?"                             a name that is not bound
            | "!" str                         something without a form, in code that cannot run

A refusal is noted and the walk goes on, because it may not matter: a method that
no code on the way calls by name cannot run, so a lock in ``Config.save`` does not
make a kernel uncacheable that reads ``config.width``. ``_judge`` decides at the end.
"""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FunctionType, MethodType

from blake3 import blake3

from ...errors import UncacheableError
from ..digest import ENCODERS, encode, encode_str
from .bytecode import facts_of
from .doors import reason_against_member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    #: Turns a value into its token, making it a node if it has an identity.
    Writer = Callable[["Walk", Any, str], bytes]
    #: Writes the record of a node.
    Recorder = Callable[["Walk", Any], bytes]

#: Raised when the meaning of a fingerprint changes.
VERSION = 2

#: Sets within sets of unordered objects; each level walks its members once more.
_MAX_SETS = 4
#: Immutable values within immutable values; everything else is a node and costs no stack.
_MAX_DEPTH = 100

_PREFIX = b"hotstart fingerprint %d\n" % VERSION + encode((sys.implementation.name, sys.hexversion))

PLAIN = {kind: ENCODERS[kind] for kind in (str, int, bool, type(None), float, complex, bytes, type(...))}
UNBOUND = b"?"

#: What a look-up finds where there is nothing; None is a value.
ABSENT: Any = object()

#: Of functions and classes, what is left out of their records: the same script is __main__ here and
#: __mp_main__ in a worker, and a dataclass describes itself with the order of a set or an address.
DESCRIPTIONS = frozenset(("__module__", "__doc__"))

#: How values of each type are written: exact types first, then by the names of a type's bases.
WRITERS: dict[type, Writer] = {}
HANDLERS: dict[str, Callable[[Any], object]] = {}
#: Writers found for types that are in neither table; forgotten when a handler is added.
_FOUND: dict[type, Writer] = {}
_FOUND_COUNT = 4096
#: Subclasses of these are written so unless a handler knows better; the last entry is ``object``.
FALLBACKS: list[tuple[type, Writer]] = []


class Walk:
    """One fingerprint in the making. Not to be shared between threads."""

    __slots__ = (
        *("called", "cells", "current", "described", "edges", "foreign", "leading_out", "nodes", "numbers"),
        *("parents", "refused", "versions", "weak"),
        *("_depth", "_root", "_sets", "_title"),
    )

    def __init__(self, root: object, sets: int = 0) -> None:
        self._root = root
        self._title = str(getattr(root, "__qualname__", None) or type(root).__qualname__).rpartition("<locals>.")[2]
        self._sets = sets
        self._depth = 0
        self.nodes: list[tuple[Recorder, Any]] = []
        self.numbers: dict[object, int] = {}
        self.parents: list[tuple[int, str]] = []
        self.edges: list[tuple[int, int, str | None]] = []
        self.refused: list[tuple[int, str, str | None, UncacheableError]] = []
        #: Shared closure cells, in order of appearance.
        self.cells: dict[int, int] = {}
        #: State of source files, each looked at once in a walk.
        self.versions: dict[str, tuple[object, ...] | None] = {}
        #: What others have put into a library's classes, looked up once in a walk.
        self.foreign: dict[type, list[tuple[str, FunctionType | str]]] = {}
        #: Which of DESCRIPTIONS some code reads: then they count, of everything met.
        self.described: set[str] = set()
        #: Classes met some of whose methods are doors, and the names of such methods that some code uses.
        self.leading_out: list[tuple[int, str, str | None, type]] = []
        self.called: set[str] = set()
        #: The node being written; while a class is, the name of the method in hand.
        self.current = -1
        self.weak: str | None = None

    def digest(self) -> str:
        """The digest of everything reached. Raises UncacheableError with the way to what has no form."""
        hasher = blake3(_PREFIX)
        hasher.update(self.token(self._root, ""))
        at = 0
        while at < len(self.nodes):
            self.current = at
            self.weak = None
            record, value = self.nodes[at]
            try:
                written = record(self, value)
            except UncacheableError as error:
                written = self.refuse("", error)
            hasher.update(b"%d:" % len(written))
            hasher.update(written)
            at += 1
        for number, label, weak, kind in self.leading_out if self.called else ():
            for name in sorted(self.called):
                reason = reason_against_member(kind, name)
                if reason:
                    label = label.removeprefix("global ")
                    self.refused.append((number, f"{label}.{name}", weak, UncacheableError(reason)))
        if self.refused:
            self._judge()
        for name in sorted(self.described):
            found = [getattr(value, name, None) for _, value in self.nodes if isinstance(value, FunctionType | type)]
            hasher.update(encode([name, [text if isinstance(text, str) else None for text in found]]))
        return hasher.hexdigest()

    def token(self, value: Any, label: str) -> bytes:
        """How ``value`` is named in a record; ``label`` says where it was found, for people."""
        plain = PLAIN.get(type(value))
        if plain is not None:
            return plain(value, 0)
        known = self.known(id(value))
        if known is not None:
            return known
        self._depth += 1
        try:
            if self._depth > _MAX_DEPTH:
                raise UncacheableError(f"nested more than {_MAX_DEPTH} deep")
            return (WRITERS.get(type(value)) or _writer_for(type(value)))(self, value, label)
        except UncacheableError as error:
            return self.refuse(label, error, type(value))
        finally:
            self._depth -= 1

    def known(self, key: object) -> bytes | None:
        """The token of a node that was met before."""
        number = self.numbers.get(key)
        if number is None:
            return None
        self.edges.append((self.current, number, self.weak))
        return b"#%d;" % number

    def node(self, value: Any, record: Recorder, label: str, key: object = None) -> bytes:
        """Make ``value`` a node, written by ``record`` when its turn comes."""
        number = len(self.nodes)
        self.numbers[id(value) if key is None else key] = number
        self.nodes.append((record, value))
        self.parents.append((self.current, label))
        self.edges.append((self.current, number, self.weak))
        return b"#%d;" % number

    def refuse(self, label: str, error: UncacheableError | str, kind: type | None = None) -> bytes:
        """Note that something has no form; what stands for it in the record."""
        if isinstance(error, str):
            error = UncacheableError(error)
        if kind is not None and issubclass(kind, FunctionType | BuiltinFunctionType | type):
            label = label.removeprefix("global ")
        self.refused.append((self.current, label, self.weak, error))
        return b"!" + encode_str("" if kind is None else f"{kind.__module__}.{kind.__qualname__}")

    def ordered(self, members: Any) -> list[Any]:
        """The members of a set, in an order that depends on what they are and not on their hashes."""
        keys = []
        for member in members:
            number = self.numbers.get(id(member))
            if number is not None:
                keys.append((0, b"%020d" % number, member))
            elif type(member) in PLAIN:
                keys.append((1, encode(member), member))
            elif self._sets >= _MAX_SETS:
                raise UncacheableError("a set within sets: its order cannot be made certain")
            else:
                keys.append((2, Walk(member, self._sets + 1).digest().encode(), member))
        keys.sort(key=lambda item: item[:2])
        if len({item[:2] for item in keys}) < len(keys):
            raise UncacheableError("members of a set that cannot be told apart have no order")
        return [member for _, _, member in keys]

    def path(self, number: int, label: str) -> str:
        """The way from the root to something found at ``label`` in a node: ``f → helper → global LOCK``."""
        steps = [label] if label else []
        while number >= 0:
            parent, found_as = self.parents[number]
            value = self.nodes[number][1]
            if isinstance(value, FunctionType | type):
                found_as = value.__qualname__ if found_as == "its class" else found_as.removeprefix("global ")
            if found_as:
                steps.append(found_as)
            number = parent
        return " → ".join([self._title, *reversed(steps)])

    def _judge(self) -> None:
        """Raise for the first refusal that code can run into."""
        live = self._live()
        for number, label, weak, error in self.refused:
            if live is None or (number in live[0] and (weak is None or weak in live[1])):
                where = self.path(number, label)
                field = f"{where} → {error.field}" if error.field else where
                raise UncacheableError(error.reason, field)

    def _live(self) -> tuple[set[int], set[str]] | None:
        """Nodes that running the root can reach and the names its code calls by; None when that is everything.

        A method is left out while nothing reached names it. Not left out: special
        methods, those that override a library's (which may call them), all of them
        when a name can be computed, and all when the root is not a function at all.
        """
        if not isinstance(self._root, FunctionType | MethodType):
            return None
        live = {-1}
        names: set[str] = set()
        grown = True
        while grown:
            grown = False
            for source, target, weak in self.edges:
                if target in live or source not in live or (weak is not None and weak not in names):
                    continue
                live.add(target)
                grown = True
                value = self.nodes[target][1]
                if isinstance(value, FunctionType):
                    facts = facts_of(value.__code__)
                    if facts.dynamic:
                        return None
                    names |= facts.attributes
        return live, names


def _writer_for(kind: type) -> Writer:
    found = _FOUND.get(kind)
    if found is None:
        found = next((_handled(name) for name in _names(kind) if name in HANDLERS), None)
        if found is None:
            found = next(writer for base, writer in FALLBACKS if issubclass(kind, base))
        if len(_FOUND) >= _FOUND_COUNT:
            _FOUND.clear()
        _FOUND[kind] = found
    return found


def _names(kind: type) -> list[str]:
    return [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]


def _handled(name: str) -> Writer:
    handler = HANDLERS[name]

    def record(walk: Walk, value: Any) -> bytes:
        try:
            content = handler(value)
        except UncacheableError:
            raise
        except Exception as error:
            # The library has changed under the handler; a compile goes on without a cache.
            raise UncacheableError(f"a {name} that is not as expected ({error!r})") from error
        return b"H" + encode_str(name) + walk.token(type(value), "its class") + walk.token(content, "")

    return lambda walk, value, label: walk.node(value, record, label)


def register(name: str, handler: Callable[[Any], object]) -> None:
    """Let ``handler`` say what counts of values whose class, or a base of it, is called ``name``.

    ``name`` is module and qualified name (``torch.nn.modules.module.Module``), so
    that nothing has to be imported to be known. The handler returns any value that
    can be walked in turn (a dict gives good error messages), or raises
    UncacheableError. What it leaves out is not in the fingerprint; the class is,
    always. The handler of the nearest base wins. To be called at import time.
    """
    HANDLERS[name] = handler
    _FOUND.clear()
