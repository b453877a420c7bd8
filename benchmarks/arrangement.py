"""A small kernel language, for what its ``make()`` costs: tensors arranged by symbols, kernels generated as text.

As in the languages it stands for, tensors have symbolic sizes and strides; an
*arrangement* tiles, expands, permutes and flattens them until all have the same
outermost shape, one position per program; an *application* says in Python what a
program does with its tiles. ``make`` works out which element of memory each position
of a tile is, simplifies that, and writes a function that computes it with NumPy, so
that results can be checked without a GPU. All its time goes into the symbols.

An expression is a polynomial over atoms (symbols, floor divisions, remainders) with
whole coefficients: ``{monomial: coefficient}``, a monomial being a sorted tuple of
atoms. Symbols are at least 1, indices at least 0.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from itertools import count

from hotstart import UncacheableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    #: ("sym", name), ("idx", number), ("div", numerator, denominator) or ("mod", …), polynomials as sorted pairs.
    Atom = tuple[Any, ...]

_numbers = count()


class Expr:
    """A polynomial in its one normal form: equal expressions are equal objects to ``==``."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[tuple[Atom, ...], int]) -> None:
        self.terms = {monomial: factor for monomial, factor in terms.items() if factor}

    def frozen(self) -> tuple[Any, ...]:
        return tuple(sorted(self.terms.items(), key=repr))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.frozen())

    def constant(self) -> int | None:
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    def __add__(self, other: Size) -> Expr:
        terms = dict(self.terms)
        for monomial, factor in lift(other).terms.items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return Expr(terms)

    def __mul__(self, other: Size) -> Expr:
        terms: dict[tuple[Atom, ...], int] = {}
        for left, first in self.terms.items():
            for right, second in lift(other).terms.items():
                monomial = tuple(sorted(left + right, key=repr))
                terms[monomial] = terms.get(monomial, 0) + first * second
        return Expr(terms)

    def __sub__(self, other: Size) -> Expr:
        return self + lift(other) * -1

    __radd__, __rmul__ = __add__, __mul__

    def __repr__(self) -> str:
        return render(self)


Size = Expr | int


def lift(value: Size) -> Expr:
    return value if isinstance(value, Expr) else Expr({(): value})


def symbol(name: str) -> Expr:
    return Expr({(("sym", name),): 1})


def index() -> Expr:
    """A fresh index; its bound is kept by whoever made it."""
    return Expr({(("idx", next(_numbers)),): 1})


class Bounds:
    """What is known of indices: each is at least 0 and below its bound."""

    def __init__(self) -> None:
        self.below: dict[Atom, Expr] = {}

    def fresh(self, size: Size) -> Expr:
        if lift(size).constant() == 1:
            return lift(0)
        made = index()
        self.below[next(iter(made.terms))[0]] = lift(size)
        return made

    def largest(self, value: Expr) -> Expr | None:
        """An upper bound of ``value``; None when a negative part hides it."""
        total = lift(0)
        for monomial, factor in value.terms.items():
            if factor < 0 and any(map(_has_index, monomial)):
                return None
            part = lift(factor)
            for atom in monomial:
                if atom in self.below:
                    part = part * (self.below[atom] - 1)
                elif atom[0] == "mod":
                    part = part * (thaw(atom[2]) - 1)
                elif atom[0] == "div" and _has_index(atom):
                    top = self.largest(thaw(atom[1]))
                    if top is None:
                        return None
                    part = part * self.divide(top, thaw(atom[2]))
                else:
                    part = part * Expr({(atom,): 1})
            total = total + part
        return total

    def fits(self, value: Expr, size: Expr) -> bool:
        """Whether 0 ≤ value < size for all values of the symbols."""
        top = self.largest(value)
        return top is not None and all(factor >= 0 for factor in value.terms.values()) and at_least_zero(size - 1 - top)

    def divide(self, value: Expr, by: Size) -> Expr:
        """``value // by``, whole multiples taken out."""
        by = lift(by)
        if by.constant() == 1:
            return value
        whole, rest = split(value, by)
        if self.fits(rest, by):
            return whole
        number, divisor = rest.constant(), by.constant()
        if number is not None and divisor is not None:
            return whole + number // divisor
        return whole + Expr({(("div", rest.frozen(), by.frozen()),): 1})

    def remainder(self, value: Expr, by: Size) -> Expr:
        by = lift(by)
        if by.constant() == 1:
            return lift(0)
        _, rest = split(value, by)
        if self.fits(rest, by):
            return rest
        number, divisor = rest.constant(), by.constant()
        if number is not None and divisor is not None:
            return lift(number % divisor)
        return Expr({(("mod", rest.frozen(), by.frozen()),): 1})

    def replace(self, value: Expr, new: Mapping[Atom, Expr]) -> Expr:
        """``value`` with indices replaced, everything that follows simplified."""
        total = lift(0)
        for monomial, factor in value.terms.items():
            part = lift(factor)
            for atom in monomial:
                if atom in new:
                    part = part * new[atom]
                elif atom[0] in ("div", "mod"):
                    above, below = (self.replace(thaw(inner), new) for inner in atom[1:])
                    part = part * (self.divide if atom[0] == "div" else self.remainder)(above, below)
                else:
                    part = part * Expr({(atom,): 1})
            total = total + part
        return total


def _has_index(atom: Atom) -> bool:
    if atom[0] in ("sym", "idx"):
        return bool(atom[0] == "idx")
    return any(_has_index(inner) for part in atom[1:] for monomial, _ in part for inner in monomial)


def thaw(frozen: Iterable[tuple[tuple[Atom, ...], int]]) -> Expr:
    return Expr(dict(frozen))


def split(value: Expr, by: Expr) -> tuple[Expr, Expr]:
    """(q, r) with ``value = q * by + r``, q as large as term-wise division finds."""
    whole, rest = lift(0), value
    lead = max(by.terms, key=lambda monomial: (len(monomial), repr(monomial)))
    scale = by.terms[lead]
    for monomial, factor in sorted(value.terms.items(), key=repr):
        left = list(monomial)
        try:
            for atom in lead:
                left.remove(atom)
        except ValueError:
            continue
        if factor % scale == 0 and (lead or by.constant() is not None):
            quotient = Expr({tuple(left): factor // scale})
            whole, rest = whole + quotient, rest - quotient * by
    return whole, rest


def at_least_zero(value: Expr) -> bool:
    """Whether no choice of symbols (each at least 1) makes it negative; False also when that cannot be seen."""
    shifted = lift(0)
    for monomial, factor in value.terms.items():
        part = lift(factor)
        for atom in monomial:
            part = part * (Expr({(atom,): 1}) + (1 if atom[0] == "sym" else 0))
        shifted = shifted + part
    return all(factor >= 0 for factor in shifted.terms.values())


def render(value: Expr) -> str:
    """As Python, in a fixed order."""
    terms = []
    for monomial, factor in value.frozen():
        factors = [_atom(atom) for atom in monomial]
        if factor != 1 or not factors:
            factors.insert(0, str(factor))
        terms.append(" * ".join(factors))
    return " + ".join(terms) or "0"


def _atom(atom: Atom) -> str:
    if atom[0] in ("sym", "idx"):
        return f"{atom[1]}" if atom[0] == "sym" else f"i{atom[1]}"
    return f"(({render(thaw(atom[1]))}) {'//' if atom[0] == 'div' else '%'} ({render(thaw(atom[2]))}))"


class Tensor:
    """A tensor of symbolic sizes, or what an arrangement has made of one.

    A size is a number, a name or an expression; dimensions with the same symbol have
    the same size. ``levels`` are shapes with their indices, outermost first; ``at``
    says which element of each original dimension a position stands for.
    """

    def __init__(self, shape: Sequence[Size | str], dtype: str = "float32") -> None:
        self.dtype = dtype
        number = next(_numbers)
        self.sizes = [symbol(size) if isinstance(size, str) else lift(size) for size in shape]
        self.strides = [symbol(f"stride_{number}_{n}") for n in range(len(shape))]
        self.bounds = Bounds()
        self.at = [self.bounds.fresh(size) for size in self.sizes]
        self.levels: list[list[tuple[Expr, Expr]]] = [list(zip(self.at, self.sizes, strict=True))]
        #: What a new tensor is to a key: the names of strides are ours and say nothing.
        self._signature: tuple[str, ...] | None = (dtype, *(render(size) for size in self.sizes))
        #: What must be below what for a position to be inside the tensor: tiles may hang over.
        self.guards: list[tuple[Expr, Expr]] = []

    @property
    def signature(self) -> tuple[str, ...]:
        if self._signature is None:
            raise UncacheableError("a tensor that is arranged already; leave that to the arrangement")
        return self._signature

    @property
    def shape(self) -> tuple[Expr, ...]:
        return self.shape_of(0)

    def shape_of(self, level: int) -> tuple[Expr, ...]:
        return tuple(size for _, size in self.levels[level])

    def _with(self, new: Mapping[int, Expr], level: int, *shapes: Sequence[tuple[Expr, Expr]]) -> Tensor:
        """A copy in which dimensions of ``level`` are replaced: its index number n by ``new[n]``."""
        made = object.__new__(Tensor)
        made.__dict__.update(self.__dict__)
        made._signature = None
        replaced = {}
        for number, value in new.items():
            old = self.levels[level][number][0]
            if old.terms:
                replaced[next(iter(old.terms))[0]] = value
        made.at = [self.bounds.replace(value, replaced) for value in self.at]
        made.guards = [(self.bounds.replace(value, replaced), size) for value, size in self.guards]
        made.levels = [*self.levels[:level], *map(list, shapes), *self.levels[level + 1 :]]
        return made

    def tile(self, shape: Sequence[Size], strides: Sequence[Size] | None = None) -> Tensor:
        """Tiles of ``shape`` (-1: all of the dimension), ``strides`` apart (-1, and by default, their own size)."""
        outer, inner, new, guards = [], [], {}, []
        for number, (size, wanted) in enumerate(zip(self.shape, shape, strict=True)):
            extent = size if wanted == -1 else lift(wanted)
            step = extent if strides is None or strides[number] == -1 else lift(strides[number])
            if wanted == -1:
                tiles = lift(1)
            elif step == extent:
                tiles = self.bounds.divide(size + extent - 1, extent)  # the last one may hang over
            else:
                tiles = self.bounds.divide(size - extent, step) + 1
            out, within = self.bounds.fresh(tiles), self.bounds.fresh(extent)
            outer.append((out, tiles))
            inner.append((within, extent))
            new[number] = out * step + within
            if wanted != -1 and step == extent and extent.constant() != 1:  # windows never hang over
                guards.append((new[number], size))
        made = self._with(new, 0, outer, inner)
        made.guards += guards
        return made

    def permute(self, order: Sequence[int], level: int = 0) -> Tensor:
        return self._with({}, level, [self.levels[level][number] for number in order])

    def squeeze(self, number: int, level: int = 0) -> Tensor:
        """Drop a dimension of size 1."""
        dimensions = list(self.levels[level])
        del dimensions[number]
        return self._with({number: lift(0)}, level, dimensions)

    def expand(self, shape: Sequence[Size]) -> Tensor:
        """Repeat dimensions of size 1; -1 keeps one as it is."""
        dimensions = [
            old if wanted == -1 else (self.bounds.fresh(wanted), lift(wanted))
            for old, wanted in zip(self.levels[0], shape, strict=True)
        ]
        return self._with({n: lift(0) for n, wanted in enumerate(shape) if wanted != -1}, 0, dimensions)

    def flatten(self, start: int, end: int, level: int = 0) -> Tensor:
        """Dimensions ``start`` up to ``end`` become one."""
        dimensions = self.levels[level]
        total = lift(1)
        for _, size in dimensions[start:end]:
            total = total * size
        flat, new, below = self.bounds.fresh(total), {}, lift(1)
        for number in reversed(range(start, end)):
            size = dimensions[number][1]
            new[number] = self.bounds.remainder(self.bounds.divide(flat, below), size)
            below = below * size
        return self._with(new, level, [*dimensions[:start], (flat, total), *dimensions[end:]])

    def ravel(self) -> Tensor:
        """The two outermost levels become one."""
        made = self._with({}, 0, self.levels[0] + self.levels[1])
        del made.levels[1]
        return made


class Program(ast.NodeTransformer):
    """The application's syntax tree with reads and writes of its tensors made calls."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self.tensors:
            return ast.Call(ast.Name(f"load_{node.value.id}", ast.Load()), [node.slice], [])
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        value = self.visit(node.value)
        if isinstance(target, ast.Name) and target.id in self.tensors:
            return ast.Expr(ast.Call(ast.Name(f"store_{target.id}", ast.Load()), [value], []))
        return ast.Assign(node.targets, value)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self.tensors:
            return ast.Name(f"{node.attr}_{node.value.id}", ast.Load())
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Load) and node.id in self.tensors:
            return ast.Call(ast.Name(f"load_{node.id}", ast.Load()), [], [])
        return node


def make(
    arrangement: Callable[..., Sequence[Tensor]],
    application: Callable[..., None],
    tensors: Sequence[Tensor],
    **meta: int,
) -> Callable[..., None]:
    """The launcher of a kernel: called with NumPy arrays, it runs every program of the grid.

    ``meta`` are block sizes; the arrangement gets a symbol for each, so that the text does
    not depend on them. Raises ValueError when the
    arranged tensors do not have the same outermost shape.
    """
    arranged = arrangement(*tensors, **{name: symbol(name) for name in meta})
    grid = arranged[-1].shape
    for tensor in arranged:
        if tensor.shape != grid:
            raise ValueError(f"a tensor is arranged as {tensor.shape}, the grid is {grid}")
    names = list(inspect.signature(application).parameters)
    tree = ast.parse(textwrap.dedent(inspect.getsource(application))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    program = Program(dict(zip(names, arranged, strict=True)))
    body = [ast.unparse(ast.fix_missing_locations(program.visit(statement))) for statement in tree.body]
    return _launcher(names, arranged, grid, [f"{name} = {value!r}" for name, value in meta.items()], body)


def _launcher(
    names: list[str], arranged: Sequence[Tensor], grid: tuple[Expr, ...], head: list[str], body: list[str]
) -> Callable[..., None]:
    lines = [f"def launch({', '.join(names)}):", *(f"    {line}" for line in head)]
    bound: set[str] = set()
    for name, tensor in zip(names, arranged, strict=True):
        for n, (size, stride) in enumerate(zip(tensor.sizes, tensor.strides, strict=True)):
            lines.append(f"    {render(stride)} = {name}.strides[{n}] // {name}.itemsize")
            text = render(size)
            first = text.isidentifier() and text not in bound
            lines.append(f"    {text} = {name}.shape[{n}]" if first else f"    assert {name}.shape[{n}] == {text}")
            bound.add(text)
        lines.append(f"    memory_{name} = {name}.reshape(-1)")
    total = lift(1)
    for size in grid:
        total = total * size
    lines.append(f"    for pid in range({render(total)}):")
    for name, tensor in zip(names, arranged, strict=True):
        lines += [f"        {line}" for line in _access(name, tensor)]
    lines += [f"        {line}" for statement in body for line in statement.splitlines()]
    text = "\n".join(lines) + "\n"
    filename = f"<kernel {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    import numpy

    namespace: dict[str, Any] = {"numpy": numpy}
    exec(compile(text, filename, "exec"), namespace)
    return namespace["launch"]  # type: ignore[no-any-return]


def _access(name: str, tensor: Tensor) -> list[str]:
    """How a program reads and writes one tensor: indices from the program's number, offset, mask."""
    bounds = tensor.bounds
    new, below = {}, lift(1)
    pid = symbol("pid")
    for position, size in reversed(tensor.levels[0]):
        if position.terms:
            new[next(iter(position.terms))[0]] = bounds.remainder(bounds.divide(pid, below), size)
        below = below * size
    at = [bounds.replace(value, new) for value in tensor.at]
    guards = [(bounds.replace(value, new), size) for value, size in tensor.guards]
    offset = lift(0)
    for value, stride in zip(at, tensor.strides, strict=True):
        offset = offset + value * stride
    loops = [render(position) if position.terms else f"_{n}" for n, (position, _) in enumerate(tensor.levels[1])]
    loops = loops if len(tensor.levels) > 2 else []
    inner = tensor.levels[-1]
    lines = [f"def load_{name}({', '.join([*loops, 'value=None'])}):"]
    for n, (position, size) in enumerate(inner):
        if position.terms:
            axes = ", ".join(":" if axis == n else "None" for axis in range(len(inner)))
            lines.append(f"    {render(position)} = numpy.arange({render(size)})[{axes}]")
    mask = " & ".join(f"({render(value)} < {render(size)})" for value, size in guards) or "True"
    shape = ", ".join(render(size) for _, size in inner)
    lines += [
        f"    offset = numpy.broadcast_to({render(offset)}, ({shape},))",
        f"    mask = numpy.broadcast_to({mask}, ({shape},))",
        "    if value is not None:",
        f"        memory_{name}[offset[mask]] = value[mask]",
        "        return None",
        f"    return numpy.where(mask, memory_{name}[numpy.where(mask, offset, 0)], 0)",
    ]
    lines.append(f"shape_{name} = ({', '.join(render(size) for size in tensor.shape_of(1))},)")
    lines.append(f"store_{name} = lambda value: load_{name}(value=value)")
    return lines
