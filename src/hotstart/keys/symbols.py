"""Symbolic dimensions, numbered by first occurrence: (s, s) is not (s, t), and names do not matter."""

from __future__ import annotations

import sys

from ..errors import UncacheableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from typing import Any

#: What kernel languages promise about a symbol; it changes the code they generate.
_PROMISES = ("constexpr", "meta", "lower_bound", "upper_bound", "power_of_two")
_PLAIN = (int, float, str, bool, type(None))


class Symbols:
    """The symbols of one list of arguments."""

    __slots__ = ("_kept", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        #: Symbols known by identity are kept alive, or another could get the address of one.
        self._kept: list[object] = []

    def dimension(self, size: Any) -> Any:
        """A size as it is; a symbol as ``("symbol", n, …)``; an expression as a tree of these."""
        if isinstance(size, int):
            return int(size)
        if type(size) is str:
            return self._symbol(("name", size), size)
        if type(size).__module__ == "torch" and type(size).__name__ == "SymInt":
            return self._torch(size)
        sympy = sys.modules.get("sympy")
        if sympy is not None and isinstance(size, getattr(sympy, "Basic", ())):
            return self._sympy(size)
        tree = getattr(size, "_node", None)
        if tree is not None and type(tree).__module__ == "ast":
            return self._tree(tree)
        if hasattr(type(size), "__add__") and not _is_named(size):
            # Taken for a symbol, h - r + 1 would be the same as h + r.
            raise UncacheableError(f"a dimension is an expression of a kind that is not known: {type(size).__name__}")
        return self._symbol(self._identity(size), size)

    def _symbol(self, key: object, symbol: Any) -> tuple[Any, ...]:
        number = self._numbers.setdefault(key, len(self._numbers))
        promises = [(name, getattr(symbol, name, None)) for name in _PROMISES]
        return ("symbol", number, *((name, value) for name, value in promises if value and type(value) in _PLAIN))

    def _identity(self, symbol: Any) -> object:
        """Equality where a class defines it as a value does, the object itself otherwise.

        Neither is the cautious choice: taking one symbol for two loses that they are equal.
        """
        self._kept.append(symbol)
        kind = type(symbol)
        if getattr(kind, "__eq__", None) is object.__eq__ or kind.__hash__ is None:
            return id(symbol)
        try:
            return ("value", symbol) if (symbol == symbol) is True else id(symbol)
        except Exception:
            return id(symbol)  # a comparison that is itself symbolic

    def _torch(self, size: Any) -> Any:
        node = size.node
        known = node.maybe_as_int()
        if known is not None:
            return int(known)
        if node.is_nested_int():
            return self._symbol(("nested", node.nested_int()), None)
        return self._sympy(node.expr)

    def _sympy(self, expression: Any) -> Any:
        if expression.is_Symbol:
            return self._symbol(("sympy", expression), None)
        if expression.is_Integer:
            return int(expression)
        if not expression.args:
            return str(expression)
        return (type(expression).__name__, *(self._sympy(argument) for argument in expression.args))

    def _tree(self, tree: ast.AST) -> Any:
        """An expression kept as a syntax tree (ninetoothed): its names are the symbols."""
        import ast

        if isinstance(tree, ast.Constant):
            return tree.value
        if isinstance(tree, ast.Name):
            # A prefix says what kind of symbol it is; the rest is a name like any other.
            prefix, mark, _ = tree.id.rpartition("_prefix_")
            return (*self._symbol(("name", tree.id), getattr(tree, "symbol", None)), prefix + mark)
        fields = ((name, value) for name, value in ast.iter_fields(tree) if name != "ctx")
        return (type(tree).__name__, *((name, self._part(value)) for name, value in fields))

    def _part(self, part: Any) -> Any:
        if isinstance(part, list):
            return tuple(self._part(item) for item in part)
        return self._tree(part) if type(part).__module__ == "ast" else part


def _is_named(symbol: Any) -> bool:
    """Whether something that can be calculated with is a name, and not what came of calculating."""
    name = getattr(symbol, "name", None)
    return str(name if isinstance(name, str) else symbol).isidentifier()
