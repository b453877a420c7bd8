"""Dynamic dimensions: one package for many sizes, and never for one that its program does not hold for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import hotstart.torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torch.hot_staging import Stage, same
else:
    from hot_staging import same

torch: Any = pytest.importorskip("torch", reason="needs torch (any build, no GPU)")


def marked(*sizes: int, **limits: int) -> Callable[[], tuple[Any, ...]]:
    """Inputs of so many rows each, the rows marked as dynamic."""

    def made() -> tuple[Any, ...]:
        found = [torch.linspace(-1, 1, size * 3).reshape(size, 3) for size in sizes]
        for x in found:
            hotstart.torch.mark_dynamic(x, 0, **limits)
        return tuple(found)

    return made


def parity(x: Any) -> Any:
    return x * 2 if x.shape[0] % 2 == 0 else x * 3


def threshold(x: Any) -> Any:
    return x * 2 if x.shape[0] > 6 else x * 3


def unequal(x: Any, y: Any) -> Any:
    return x.sum() * 2 if x.shape[0] != y.shape[0] else x.sum() * 3


def shorter(x: Any, y: Any) -> Any:
    return x.sum() * 2 if x.shape[0] < y.shape[0] else x.sum() * 3


def product(x: Any, y: Any) -> Any:
    return x.sum() * 2 if x.shape[0] * y.shape[0] > 30 else x.sum() * 3


def in_pairs(x: Any) -> Any:
    return x.reshape(-1, 2, 3).sum(0)


def twice(x: Any) -> Any:
    return x * 2


def add(x: Any, y: Any) -> Any:
    return x + y


#: A function, the sizes it is traced with, and others: each with whether the package may serve it.
SIZES: dict[str, tuple[Any, tuple[int, ...], dict[tuple[int, ...], bool]]] = {
    "parity": (parity, (4,), {(6,): True, (5,): False, (7,): False, (1,): False, (0,): False}),
    "threshold": (threshold, (4,), {(6,): True, (7,): False, (70,): False}),
    "unequal": (unequal, (4, 5), {(6, 7): True, (6, 6): False}),
    "shorter": (shorter, (4, 5), {(6, 7): True, (6, 5): False, (6, 6): False}),
    "product": (product, (4, 5), {(3, 9): True, (9, 9): False}),
    "pairs": (in_pairs, (4,), {(6,): True, (10,): True, (2,): False}),
    "alike": (add, (4, 4), {(6, 6): True, (6, 1): False, (1, 6): False, (1, 1): False, (0, 0): False}),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_the_program_does_not_hold_for_is_not_served(stage: Stage, name: str) -> None:
    target, first, others = SIZES[name]
    with torch.no_grad():
        assert stage.build(target, *marked(*first)()) == "published"
        compiled, plain = stage.compiled(target)
        compiled(*marked(*first)())
        assert plain.calls == 0
        for sizes, served in others.items():
            inputs = [torch.randn(size, 3) for size in sizes]
            before = plain.calls
            same(compiled(*inputs), target(*inputs))
            assert (plain.calls == before) == served, sizes


def test_a_dimension_that_is_broadcast_keeps_its_one(stage: Stage) -> None:
    def inputs(rows: int, others: int) -> tuple[Any, ...]:
        return (*marked(rows)(), torch.ones(others, 3) * 2)

    with torch.no_grad():
        assert stage.build(add, *inputs(4, 1)) == "published"
        compiled, plain = stage.compiled(add)
        for rows, others in ((4, 1), (6, 1), (6, 6), (1, 1), (1, 6)):
            same(compiled(*inputs(rows, others)), add(*inputs(rows, others)))
        assert plain.calls == 3


def test_outside_of_the_range_that_was_given_nothing_is_served(stage: Stage) -> None:
    with torch.no_grad():
        assert stage.build(twice, *marked(4, min=3, max=8)()) == "published"
        compiled, plain = stage.compiled(twice)
        compiled(*marked(4, min=3, max=8)())
        for rows, misses in ((3, 0), (8, 0), (9, 1), (2, 2), (1, 3), (0, 4)):
            x = torch.randn(rows, 3)
            same(compiled(x), x * 2)
            assert plain.calls == misses, rows


def test_dynamic_true_serves_other_sizes_and_says_no_to_those_it_cannot(stage: Stage) -> None:
    def target(x: Any, y: Any) -> Any:
        return torch.softmax(x @ y, -1) * (2 if x.shape[0] % 2 == 0 else 3)

    def inputs(a: int, b: int, c: int) -> tuple[Any, ...]:
        return torch.randn(a, b), torch.randn(b, c)

    everything: dict[str, Any] = {"dynamic": True}
    with torch.no_grad():
        assert stage.build(target, *inputs(4, 3, 5), compile_arguments=everything) == "published"
        compiled, plain = stage.compiled(target, **everything)
        for sizes, misses in (((4, 3, 5), 0), ((6, 7, 2), 0), ((5, 3, 5), 1), ((4, 1, 5), 2), ((2, 3, 0), 3)):
            given = inputs(*sizes)
            same(compiled(*given), target(*given))
            assert plain.calls == misses, sizes
        x, y = inputs(4, 3, 5)
        same(compiled(x.T.contiguous().T, y), target(x, y))
        assert plain.calls == 4
