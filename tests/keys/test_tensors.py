"""Arrays by content, arguments by what a compiler sees of them, and neither confused with the other."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart.errors import UncacheableError
from hotstart.keys.digest import digest_of, encode
from hotstart.keys.functions import fingerprint
from hotstart.keys.key import Key
from hotstart.keys.tensors import hash_value, tensor_signature


class Symbol:
    """A dimension without a value, known by identity."""


@dataclasses.dataclass(frozen=True)
class Named:
    """A dimension known by its name, as a value."""

    name: str


@dataclasses.dataclass
class Tensor:
    """A symbolic tensor of a kernel language."""

    shape: tuple[Any, ...]
    dtype: Any = "float32"
    strides: Any = None
    jagged_dim: int | None = None
    other: Any = None
    constexpr: bool = False
    value: Any = None


def key(*values: Any) -> str:
    """The digest of a key with this signature: it has to be plain data."""
    return Key("test", inputs=tensor_signature(*values)).digest


def test_the_same_symbol_twice_is_not_two_symbols() -> None:
    s, t, u = Symbol(), Symbol(), Symbol()
    assert key(Tensor((s, s))) != key(Tensor((s, t)))
    assert key(Tensor((s, t))) == key(Tensor((t, u)))  # which symbols they are does not matter
    assert key(Tensor((s, t))) == key(Tensor((t, s)))
    assert key(Tensor((s, 4))) != key(Tensor((s, 5)))
    assert key(Tensor((s,))) != key(Tensor((0,)))


def test_symbols_are_numbered_over_all_arguments() -> None:
    s, t = Symbol(), Symbol()
    assert key(Tensor((s,)), Tensor((s,))) != key(Tensor((s,)), Tensor((t,)))
    assert key([Tensor((s,)), (Tensor((s,)),)]) != key([Tensor((s,)), (Tensor((t,)),)])
    assert key([Tensor((s, t)), Tensor((t, s))]) != key([Tensor((s, t)), Tensor((s, t))])


def test_symbols_that_are_values_are_one_when_they_are_equal() -> None:
    assert key(Tensor((Named("s"), Named("s")))) != key(Tensor((Named("s"), Named("t"))))
    assert key(Tensor((Named("s"), Named("s")))) == key(Tensor((Named("x"), Named("x"))))
    assert key(Tensor(("s", "s"))) != key(Tensor(("s", "t")))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_two_shapes_are_alike_exactly_when_one_is_the_other_renamed(one: list[int], other: list[int]) -> None:
    symbols = [Symbol() for _ in range(4)]
    alike = any([renaming[at] for at in one] == other for renaming in itertools.permutations(range(4)))
    same = key(Tensor(tuple(symbols[at] for at in one))) == key(Tensor(tuple(symbols[at] for at in other)))
    assert same == alike


def test_symbols_of_which_one_was_forgotten_are_not_confused() -> None:
    """An address is given again after its object is gone."""

    def fresh() -> Any:
        return (Symbol() for _ in range(5))

    @dataclasses.dataclass
    class Lazy:
        dtype: str = "float32"

        @property
        def shape(self) -> Any:
            return fresh()

    assert tensor_signature(Lazy())["shape"] == tuple(("symbol", number) for number in range(5))


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (4, 4, 1)},
        {"shape": (4, 8)},
        {"dtype": "float16"},
        {"dtype": Tensor((2,))},
        {"strides": (4, 1)},
        {"strides": (1, 4)},
        {"strides": (8, 1)},
        {"jagged_dim": 1},
        {"other": 0},
        {"other": 0.0},
        {"other": float("-inf")},
        {"constexpr": True},
        {"constexpr": True, "value": 1},
        {"constexpr": True, "value": True},
    ],
    ids=str,
)
def test_every_part_of_a_signature_counts(change: dict[str, Any]) -> None:
    base: dict[str, Any] = {"shape": (4, 4)}
    assert key(Tensor(**base)) != key(Tensor(**{**base, **change}))


def test_scalars_count_by_value_and_type() -> None:
    values = [1, True, 1.0, "1", None, (1,), np.float32(1), np.float64(1)]
    assert len({key(value) for value in values}) == len(values)
    assert tensor_signature([1, 2]) == ({"value": 1}, {"value": 2})
    with pytest.raises(UncacheableError):
        tensor_signature(object())


def test_strides_are_a_class() -> None:
    def strides(array: Any) -> Any:
        return tensor_signature(array)["strides"]

    base = np.zeros((4, 6, 8), np.float32)
    assert strides(base) == strides(np.zeros((1, 1))) == strides(np.zeros((0, 4))[:, ::2]) == "contiguous"
    assert strides(np.zeros(())) == "contiguous"
    assert strides(base.T) == ("dense", (2, 1, 0))
    assert strides(base.transpose(0, 2, 1)) == ("dense", (0, 2, 1))
    assert strides(base[:, ::2]) == ("strided", (48, 16, 1))
    assert strides(base[::-1]) == ("strided", (-48, 8, 1))
    assert strides(np.broadcast_to(np.zeros(8), (4, 8))) == ("strided", (0, 1))
    assert strides(base[:1]) == "contiguous"
    assert strides(base[:, :1]) == ("strided", (48, 0, 1))


def test_an_array_and_its_description_have_one_signature() -> None:
    array = np.zeros((4, 8), np.float16)
    assert tensor_signature(array)["dtype"] == "float16"
    assert tensor_signature(array)["rank"] == 2
    assert key(array) == key(Tensor((4, 8), "float16", strides=(8, 1)))
    assert key(array) != key(array.astype(">f2"))


def test_hash_value_of_plain_data_is_its_digest() -> None:
    for value in (1, "a", {"b": [1, (2, None)]}, np.float32(1)):
        assert hash_value(value) == digest_of(encode(value))


def test_arrays_count_by_content_wherever_they_are() -> None:
    @dataclasses.dataclass
    class Box:
        array: Any

    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    other = array.copy()
    other[1, 2] += 1
    for wrap in (lambda a: a, lambda a: [a], lambda a: {"k": (1, a)}, Box):
        assert hash_value(wrap(array)) == hash_value(wrap(array.copy()))
        assert hash_value(wrap(array)) != hash_value(wrap(other))
    forms = [
        array,
        array.astype(np.float64),
        array.reshape(3, 2),
        array.T.copy().T,
        array.view(np.int32),
        [array],
        array.tobytes(),
        array.tolist(),
        array.astype(">f4"),
        array.ravel(),
        array[:, :0],
        array[:0],
    ]
    assert len({hash_value(form) for form in forms}) == len(forms)


def test_arrays_of_every_kind_have_a_content() -> None:
    structured = np.zeros(2, dtype=[("a", "i4"), ("b", "f8")])
    objects = np.array([1, "a", None], dtype=object)
    for array in (structured, objects, np.array("2020-01-01", "M8[D]"), np.array(["a", "bc"]), np.array(1j)):
        assert hash_value(array) == hash_value(array.copy())
    assert hash_value(objects) != hash_value(np.array([1, "b", None], dtype=object))
    assert hash_value(np.ones((1, 1))) != hash_value(np.ones((1, 1)).view(np.matrix))
    for refused in (np.array([object()]), np.ma.array([1, 2], mask=[True, False])):
        with pytest.raises(UncacheableError):
            hash_value([refused])


ARRAY = np.zeros(3)


def test_an_array_that_a_function_reads_counts_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        return x + ARRAY

    before = fingerprint(f)
    ARRAY[1] = 1
    changed = fingerprint(f)
    ARRAY[1] = 0
    assert fingerprint(f) == before != changed
    monkeypatch.setitem(f.__globals__, "ARRAY", np.zeros(3, np.float32))
    assert fingerprint(f) != before


def test_sympy_dimensions_are_symbols_and_expressions() -> None:
    sympy = pytest.importorskip("sympy", reason="needs sympy, which torch brings")
    s, t = sympy.symbols("s t", integer=True)
    assert key(Tensor((s, s))) != key(Tensor((s, t)))
    assert key(Tensor((s, s + 1))) != key(Tensor((s, t + 1)))
    assert key(Tensor((s, s + 1))) != key(Tensor((s, s + 2)))
    assert key(Tensor((s, s + 1))) == key(Tensor((t, t + 1)))
    assert key(Tensor((sympy.Integer(4),))) == key(Tensor((4,)))


def test_dimensions_that_are_syntax_trees_are_symbols_and_expressions() -> None:
    import ast

    class Tree:
        """As ninetoothed keeps them: a new object around the same tree at every turn."""

        def __init__(self, text: str, **promises: Any) -> None:
            self._node = ast.parse(text, mode="eval").body
            for name, value in promises.items():
                setattr(self, name, value)
            self._node.symbol = self  # type: ignore[attr-defined]

    assert key(Tensor((Tree("s"), Tree("s")))) != key(Tensor((Tree("s"), Tree("t"))))
    assert key(Tensor((Tree("s"), Tree("s + 1")))) != key(Tensor((Tree("s"), Tree("t + 1"))))
    assert key(Tensor((Tree("s"), Tree("f(s, 2)")))) == key(Tensor((Tree("t"), Tree("f(t, 2)"))))
    assert key(Tensor((Tree("s"),))) != key(Tensor((Tree("s", upper_bound=64),)))
    assert key(Tensor((Tree("s"),))) != key(Tensor((Tree("x_meta_prefix_s"),)))
    assert key(Tensor((Tree("4"),))) == key(Tensor((4,)))


def test_an_expression_of_an_unknown_kind_is_refused_and_not_taken_for_a_symbol() -> None:
    class Dimension:
        def __init__(self, text: str) -> None:
            self.text = text

        def __add__(self, other: object) -> Dimension:
            return Dimension(f"{self.text} + {other}")

        def __str__(self) -> str:
            return self.text

    h, r = Dimension("h"), Dimension("r")
    assert key(Tensor((h, r))) == key(Tensor((r, h)))
    with pytest.raises(UncacheableError, match="expression of a kind that is not known: Dimension"):
        tensor_signature(Tensor((h, r, h + r)))
