"""What sizes must satisfy besides their ranges, for a program with dynamic dimensions to be the right one.

``if x.shape[0] % 2 == 0`` in a model takes one side while it is traced, and torch notes
the condition. A size that breaks it belongs to another program, so the condition goes
into the entry and every call is asked. As nested lists, not as text to be evaluated: an
entry must not choose what runs.

    ["s0"]                    the size of a dynamic dimension
    7                         a number
    ["+" | "*" | "%" | …, a, b …]
"""

from __future__ import annotations

from operator import eq, floordiv, ge, gt, le, lt, mod, ne

from .reasons import NotHotError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "%": mod,
    "//": floordiv,
    "**": pow,
    "==": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_MANY: dict[str, Callable[[Any], Any]] = {"and": all, "or": any, "max": max, "min": min, "+": sum}

#: Classes of sympy and of torch's additions to it. ``Mod`` of sizes, which are not negative, is Python's.
_NAMES = {
    "Add": "+",
    "Mul": "*",
    "Pow": "**",
    "Mod": "%",
    "PythonMod": "%",
    "FloorDiv": "//",
    "CleanDiv": "//",
    "Equality": "==",
    "Unequality": "!=",
    "LessThan": "<=",
    "StrictLessThan": "<",
    "GreaterThan": ">=",
    "StrictGreaterThan": ">",
    "And": "and",
    "Or": "or",
    "Not": "not",
    "Max": "max",
    "Min": "min",
}


def written(expression: Any) -> Any:
    """A condition of sympy's as lists. Raises NotHotError for one that has no form here."""
    kind = type(expression).__name__
    if getattr(expression, "is_Symbol", False):
        return [str(expression)]
    if getattr(expression, "is_Integer", False):
        return int(expression)
    operator = _NAMES.get(kind)
    if operator is None:
        raise NotHotError(
            f"sizes have to satisfy {expression}, which is not understood",
            "mark fewer dimensions as dynamic, or keep the sizes out of the model's decisions",
        )
    return [operator, *[written(part) for part in expression.args]]


def hold(conditions: Iterable[Any], sizes: Mapping[str, int]) -> bool:
    """Whether all of them are true for these sizes."""
    try:
        return all(_value(condition, sizes) for condition in conditions)
    except (ZeroDivisionError, KeyError, TypeError, OverflowError):
        return False  # a size for which the question makes no sense


def _value(part: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(part, int):
        return part
    if len(part) == 1:
        return sizes[part[0]]
    operator = part[0]
    values = [_value(item, sizes) for item in part[1:]]
    if operator == "*":
        product = 1
        for value in values:
            product *= value
        return product
    if operator == "not":
        return not values[0]
    many = _MANY.get(operator)
    return many(values) if many is not None else _TWO[operator](*values)
