"""Which names a code object reads, and how far: the references of ``keys.functions.bytecode``.

Found by adjacency. A load is followed through the attribute loads that come
directly after it (``torch.nn.functional.relu``) and counts as a use of the value
itself when anything else comes, so every pattern not understood here, and every
opcode of a later Python, errs towards including more.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

    from .bytecode import CodeFacts
    from .instructions import Operation

    #: A name in the globals, or ("import", module, level, whether the top package is what gets bound).
    Root = str | tuple[str, str, int, bool]
    Chain = tuple[str, ...]
    #: How a value is asked for an item: ("const", "HOME"), ("global", "KEY"), or None when it cannot be told.
    Asked = tuple[str, str] | None

_GLOBAL_LOADS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
_VARIABLE_LOADS = frozenset(("LOAD_FAST", "LOAD_DEREF"))
_SIMPLE_LOADS = frozenset(("LOAD_CONST", "LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME"))
_SUBSCRIPTS = frozenset(("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR"))
_END = ("", None, False)


class Uses:
    """What is done with each name in one code object and those nested in it."""

    def __init__(self, code: CodeType, ops: list[Operation], inner: list[CodeFacts]) -> None:
        self.code = code
        self.ops = ops
        self.refs: set[tuple[Root, Chain, str]] = set()
        self.asked: dict[str, frozenset[Asked]] = {}
        #: Local, cell and free variables: the chains read of each, and how often each is assigned.
        self.chains: dict[str, set[Chain]] = {}
        self.stored: dict[str, int] = {}
        self._asked_of: dict[tuple[str, Chain], set[Asked]] = {}
        self._imported: dict[str, list[tuple[Root, Chain]]] = {}
        for nested in inner:
            for name, chains in nested.free.items():
                self.chains.setdefault(name, set()).update(chains)
        self._read()
        self._resolve_imports()
        for nested in inner:
            for root, chain, label in nested.refs:
                self._merge(root, chain, label, nested.asked.get(label, frozenset((None,))))

    def _read(self) -> None:
        cells = frozenset(self.code.co_cellvars)
        for at, (op, arg, _) in enumerate(self.ops):
            if op in _GLOBAL_LOADS:
                if arg == "__name__" and self._op(at + 1)[:2] == ("STORE_NAME", "__module__"):
                    continue  # every class body begins so
                chain, end = self._chain(at)
                self._refer(arg, chain, {self._key(at, end)})
            elif op in _VARIABLE_LOADS:
                if op == "LOAD_FAST" and arg in cells:
                    continue  # making a closure, in 3.13; what the inner function reads is found in there
                chain, end = self._chain(at)
                self.chains.setdefault(arg, set()).add(chain)
                self._asked_of.setdefault((arg, chain), set()).add(self._key(at, end))
            elif op == "IMPORT_NAME":
                self._import(at, arg)
            elif op.endswith(("_FAST", "DEREF")) and isinstance(arg, str):
                self.stored[arg] = self.stored.get(arg, 0) + 1
                if not op.startswith("STORE"):
                    self.chains.setdefault(arg, set()).add(())

    def _resolve_imports(self) -> None:
        for name, sources in self._imported.items():
            # A name that also holds other things, or that nothing here reads: take the module whole.
            chains = self.chains.get(name) if len(sources) == self.stored.get(name) else None
            for root, path in sources:
                for chain in chains or {()}:
                    self._refer(root, path + chain, self._asked_of.get((name, chain), {None}))

    def _refer(self, root: Root, chain: Chain, asked: set[Asked]) -> None:
        label = ".".join((_name(root), *chain))
        self._merge(root, chain, label, frozenset(asked))

    def _merge(self, root: Root, chain: Chain, label: str, asked: frozenset[Asked]) -> None:
        if label in self.asked or asked != {None}:
            before = {None} if (root, chain, label) in self.refs else frozenset()
            self.asked[label] = self.asked.get(label, frozenset(before)) | asked
        self.refs.add((root, chain, label))

    def _op(self, at: int) -> Operation:
        return self.ops[at] if 0 <= at < len(self.ops) else _END

    def _chain(self, at: int) -> tuple[Chain, int]:
        """The attributes taken of what ``at`` loads, and where that ends."""
        end = at + 1
        if self._op(end)[:2] == ("COPY", 1) and self._op(end + 1)[0] == "LOAD_ATTR":
            # ``x.n += 1`` loads x, copies it, reads n, and comes back to store n.
            name = self._op(end + 1)[1]
            comes_back = any(op[:2] == ("STORE_ATTR", name) for op in self.ops[end + 2 :])
            return ((name,), end + 2) if comes_back else ((), end)
        names = []
        while self._op(end)[0] == "LOAD_ATTR":
            names.append(self._op(end)[1])
            end += 1
        if not names and self._op(end)[0] in ("STORE_ATTR", "DELETE_ATTR"):
            names.append(self._op(end)[1])
        return tuple(names), end

    def _key(self, at: int, end: int) -> Asked:
        """The item that what was loaded from ``at`` to ``end`` is asked for: ``x["k"]``, ``x("k")``, ``"k" in x``.

        None when it is not asked, or the item is not one constant: a wrong name would
        put the wrong variable into the key, so only these few patterns are believed.
        """
        first, second = self._op(end), self._op(end + 1)
        if first[0] == "CONTAINS_OP":
            # Something that was jumped to may have another left side.
            return None if self._op(at)[2] else _constant(self._op(at - 1))
        key = _constant(first)
        if second[0] in _SUBSCRIPTS or second[:2] == ("CALL", 1):
            return key
        if second[0] in _SIMPLE_LOADS:  # a default: one value, or an attribute of one
            end += 2
            while self._op(end)[0] == "LOAD_ATTR":
                end += 1
            return key if self._op(end)[:2] == ("CALL", 2) else None
        return None

    def _import(self, at: int, module: str) -> None:
        level, names = self._op(at - 2)[1], self._op(at - 1)[1]
        end = at + 1
        if names:
            while self._op(end)[0] == "IMPORT_FROM":
                self._bind(self._op(end + 1), ("import", module, level, False), (self._op(end)[1],))
                end += 2
            return
        path: Chain = ()
        while self._op(end)[0] in ("IMPORT_FROM", "SWAP", "POP_TOP"):
            if self._op(end)[0] == "IMPORT_FROM":  # ``import a.b as c`` walks from a to b
                path += (self._op(end)[1],)
            end += 1
        self._bind(self._op(end), ("import", module, level, True), path)

    def _bind(self, store: Operation, root: Root, path: Chain) -> None:
        if store[0] in ("STORE_FAST", "STORE_DEREF") and store[1] not in self.code.co_freevars:
            self._imported.setdefault(store[1], []).append((root, path))
        else:
            self._refer(root, path, {None})

    def self_reads(self) -> tuple[str, ...] | None:
        if not self.code.co_argcount:
            return None
        first = self.code.co_varnames[0]
        chains = self.chains.get(first, set())
        if () in chains or first in self.stored:
            return None
        return tuple(sorted({chain[0] for chain in chains}))


def _name(root: Root) -> str:
    if isinstance(root, str):
        return root
    return root[1].partition(".")[0] if root[3] else "." * root[2] + root[1]


def _constant(op: Operation) -> Asked:
    if op[0] == "LOAD_CONST" and isinstance(op[1], str):
        return "const", op[1]
    return ("global", op[1]) if op[0] == "LOAD_GLOBAL" else None
