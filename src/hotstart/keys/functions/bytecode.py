"""What one code object is, and what it refers to: read from its bytecode, once.

Bytecode and not source, because it is what runs. Source can be absent (exec, a
zipped application) or newer than the process (a file edited after import), and
two meanings of one text are told apart by nothing in it. The price is that a
digest holds for one minor version of Python; ``keys.functions`` says why that is
no loss. File names and line numbers are left out, set constants are sorted.
"""

from __future__ import annotations

from types import CodeType

from ...errors import UncacheableError
from ..digest import digest_of, encode
from .instructions import operations
from .references import Uses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .instructions import Operation
    from .references import Asked, Chain, Root

#: Attributes through which code reaches what no name in it leads to.
_UNSEEN = frozenset(
    (
        *("__globals__", "__subclasses__", "f_globals", "f_locals", "f_back", "f_lineno"),
        *("tb_frame", "gi_frame", "cr_frame", "ag_frame"),
        *("co_filename", "co_firstlineno", "co_positions", "co_lines"),
    )
)
#: Names that let a function see its own local variables, ``self`` among them.
_LOCAL_VIEWS = frozenset(("super", "locals", "vars", "dir", "eval", "exec"))
#: Names that turn a string into an attribute: any method may then be the one called.
_DYNAMIC = frozenset(("getattr", "vars", "attrgetter", "methodcaller", "__getattribute__", "__dict__", "inspect"))


class CodeFacts:
    """One code object with everything nested in it. Never changes, so it is kept while the process runs."""

    __slots__ = ("asked", "attributes", "code", "digest", "dynamic", "free", "objects", "refs", "self_reads", "unseen")

    #: Kept, so that the id under which the facts are filed is not given to another object.
    code: CodeType
    #: Encoded digest of instructions, constants, names, flags and signature.
    digest: bytes
    #: What is read of globals and imports: root, attribute chain, and both as people write them.
    refs: tuple[tuple[Root, Chain, str], ...]
    #: For each of these, as people write it, how it is asked for items, where some are constants.
    asked: dict[str, frozenset[Asked]]
    #: For each free variable the chains read of it; an empty chain when the value itself is used.
    free: dict[str, frozenset[Chain]]
    #: Attributes read of the first parameter, or None when it is used in any other way.
    self_reads: tuple[str, ...] | None
    #: Constants without a canonical form of their own (put there by ``code.replace``).
    objects: tuple[object, ...]
    #: Every name this code could call a method by; ``dynamic`` when it could call any.
    attributes: frozenset[str]
    dynamic: bool
    #: Names through which it reaches what cannot be seen.
    unseen: tuple[str, ...]


_KNOWN: dict[int, CodeFacts] = {}
_KNOWN_COUNT = 8192


def facts_of(code: CodeType) -> CodeFacts:
    """The facts about ``code``: 0.1 µs when known, some 100 µs when not."""
    known = _KNOWN.get(id(code))
    if known is None:
        known = _examine(code)
        if len(_KNOWN) >= _KNOWN_COUNT:  # somebody generates code; forgetting costs time only
            _KNOWN.clear()
        _KNOWN[id(code)] = known
    return known


def _examine(code: CodeType) -> CodeFacts:
    ops = operations(code)
    inner = [facts_of(item) for item in code.co_consts if isinstance(item, CodeType)]
    uses = Uses(code, ops, inner)
    facts = CodeFacts()
    facts.code = code
    constants, objects = _constants(code, ops)
    facts.digest = encode(_digest(code, constants))
    facts.objects = (*objects, *(item for nested in inner for item in nested.objects))
    facts.refs = tuple(sorted(uses.refs, key=lambda ref: (ref[2], str(ref))))
    facts.asked = uses.asked
    facts.free = {
        name: frozenset(uses.chains.get(name, set()) | ({()} if name in uses.stored else set()))
        for name in code.co_freevars
    }
    attributes = {arg for op, arg, _ in ops if op.endswith("_ATTR") and isinstance(arg, str)}
    facts.unseen = tuple(sorted(_UNSEEN.intersection(attributes).union(*(nested.unseen for nested in inner))))
    # Strings too: the "name" in a getattr, the attributes a match statement asks for.
    facts.attributes = frozenset(attributes | _strings(code.co_consts)).union(*(n.attributes for n in inner))
    roots = {root for root, _, _ in facts.refs if isinstance(root, str)}
    facts.dynamic = not _DYNAMIC.isdisjoint(roots | attributes) or any(nested.dynamic for nested in inner)
    facts.self_reads = uses.self_reads() if _LOCAL_VIEWS.isdisjoint(roots) else None
    return facts


def _digest(code: CodeType, constants: list[bytes]) -> str:
    return digest_of(
        encode(
            (
                (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
                # Not co_positions or co_linetable: only tracebacks see those. co_code is free of the
                # interpreter's own rewriting (specialisation, tracing, coverage); a test holds it to that.
                code.co_code,
                code.co_exceptiontable,
                constants,
                (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
                (code.co_name, code.co_qualname),
            )
        )
    )


def _constants(code: CodeType, ops: list[Operation]) -> tuple[list[bytes], list[object]]:
    """Each constant in a form free of addresses, order of sets and line numbers; and those that have none."""
    loads = [id(arg) for op, arg, _ in ops if op == "LOAD_CONST"]
    masked = {}
    for at, (op, arg, _) in enumerate(ops[:-1]):
        following, name, _ = ops[at + 1]
        # 3.13 stores these into every class body. A constant that is also used for something else stays.
        if op == "LOAD_CONST" and following == "STORE_NAME" and loads.count(id(arg)) == 1:
            if name == "__firstlineno__":
                masked[id(arg)] = b"line"
            elif name == "__static_attributes__":
                masked[id(arg)] = encode(sorted(arg))
    forms: list[bytes] = []
    objects: list[object] = []
    for item in code.co_consts:
        if isinstance(item, CodeType):
            forms.append(facts_of(item).digest)
        elif id(item) in masked:
            forms.append(masked[id(item)])
        else:
            try:
                forms.append(encode(item))
            except UncacheableError:
                forms.append(b"object")
                objects.append(item)
    return forms, objects


def _strings(constants: tuple[object, ...]) -> set[str]:
    found = {item for item in constants if isinstance(item, str)}
    for item in constants:
        if isinstance(item, tuple):
            found |= _strings(item)
    return found
