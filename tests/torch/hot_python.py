"""Python that models read, and changes of it behind a package that is loaded: cases of ``test_hostile``."""

from __future__ import annotations

import array
import builtins
import collections
import enum
import functools
import gc
import types
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

np: Any = pytest.importorskip("numpy", reason="needs numpy")
torch: Any = pytest.importorskip("torch", reason="needs torch (any build, no GPU)")
F: Any = torch.nn.functional
nn: Any = torch.nn


def rows() -> tuple[Any, ...]:
    return (torch.linspace(-1, 1, 12).reshape(4, 3),)


class Case:
    """``target`` called with ``args()``; then ``change`` (undone by ``undo``), then called with ``others()``."""

    def __init__(
        self, target: Any, change: Any = None, args: Any = rows, others: Any = None, undo: Any = None, **kwargs: Any
    ) -> None:
        self.target, self.change, self.args, self.others, self.undo = target, change, args, others or args, undo
        self.kwargs = kwargs
        self.other_kwargs = kwargs.pop("other_kwargs", kwargs)


# -- what Python code reads ------------------------------------------------------------

FACTOR = 2.0
NUMBERS = [2.0]
ORDERED = collections.OrderedDict(a=2.0, b=3.0)
CHAINED = collections.ChainMap({"a": 2.0})
PROXIED = {"a": 2.0}
PROXY = types.MappingProxyType(PROXIED)
NUMPY = np.array([1.0, 2.0, 3.0], dtype=np.float32)
ARRAY = array.array("d", [2.0])
BYTES = bytearray(b"\x02")
MEMBERS = {8, 16}
ONE = {1}
TENSOR = torch.ones(3)


def set_global(name: str, value: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    was = globals()[name]
    return lambda: globals().__setitem__(name, value), lambda: globals().__setitem__(name, was)


def case_property_of_a_global() -> Case:
    class Model(nn.Module):  # type: ignore[misc]
        @property
        def factor(self) -> float:
            return FACTOR

        def forward(self, x: Any) -> Any:
            return x * self.factor

    change, undo = set_global("FACTOR", 3.0)
    return Case(Model(), change, undo=undo)


def case_getattr_of_a_model() -> Case:
    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.settings = {"factor": 2.0}

        def __getattr__(self, name: str) -> Any:
            return self.__dict__["settings"][name]  # raises KeyError where AttributeError is expected

        def forward(self, x: Any) -> Any:
            return x * self.factor

    model = Model()
    return Case(model, lambda: model.settings.update(factor=5.0))


def case_mutable_default() -> Case:
    def target(x: Any, held: Any = [2.0]) -> Any:  # noqa: B006
        return x * held[0]

    return Case(target, lambda: (target.__defaults__ or ())[0].__setitem__(0, 5.0))


def case_keyword_default_in_place() -> Case:
    def target(x: Any, *, factor: float = 2.0) -> Any:
        return x * factor

    return Case(target, lambda: (target.__kwdefaults__ or {}).update(factor=5.0))


def case_global_list_in_place() -> Case:
    return Case(lambda x: x * NUMBERS[0], lambda: NUMBERS.append(NUMBERS.pop() + 1))


def case_order_of_a_dict() -> Case:
    def target(x: Any) -> Any:
        for value in ORDERED.values():
            x = x * value + 1
        return x

    return Case(target, lambda: ORDERED.move_to_end("a"))


def case_chain_of_dicts() -> Case:
    return Case(lambda x: x * CHAINED["a"], lambda: CHAINED.maps.insert(0, {"a": 9.0}))


def case_dict_behind_a_proxy() -> Case:
    return Case(lambda x: x * PROXY["a"], lambda: PROXIED.update(a=9.0))


def case_numpy_in_place() -> Case:
    return Case(lambda x: x * torch.from_numpy(NUMPY), lambda: NUMPY.__setitem__(0, NUMPY[0] + 3))


def case_array_in_place() -> Case:
    return Case(lambda x: x * ARRAY[0], lambda: ARRAY.__setitem__(0, ARRAY[0] + 3))


def case_bytes_in_place() -> Case:
    return Case(lambda x: x * BYTES[0], lambda: BYTES.__setitem__(0, BYTES[0] + 3))


def case_order_of_a_set() -> Case:
    def target(x: Any) -> Any:
        for value in MEMBERS:
            x = x * value + 1
        return x

    def change() -> None:
        MEMBERS.clear()
        MEMBERS.update((16, 8))

    return Case(target, change)


def case_one_becomes_true_in_a_set() -> Case:
    def put(value: Any) -> None:
        ONE.clear()
        ONE.add(value)

    return Case(lambda x: x.bool() * next(iter(ONE)), lambda: put(True), undo=lambda: put(1))


def case_partial_set_anew() -> Case:
    held: Any = functools.partial(lambda factor, x: x * factor, 2.0)
    return Case(lambda x: held(x), lambda: held.__setstate__((lambda factor, x: x * factor, (9.0,), {}, {})))


def case_keywords_of_a_partial() -> Case:
    held = functools.partial(lambda x, factor: x * factor, factor=2.0)
    return Case(lambda x: held(x), lambda: held.keywords.update(factor=9.0))


def case_builtin_replaced() -> Case:
    was = builtins.max
    return Case(
        lambda x: x * max(1, 2),
        lambda: setattr(builtins, "max", lambda *values: 77),
        undo=lambda: setattr(builtins, "max", was),
    )


def case_builtin_shadowed() -> Case:
    return Case(
        lambda x: x * sum([1, 2]),
        lambda: globals().__setitem__("sum", lambda values: 50),
        undo=lambda: globals().pop("sum", None),
    )


def case_attribute_of_a_function() -> Case:
    def target(x: Any) -> Any:
        return x * getattr(target, "factor", 2.0)

    return Case(target, lambda: setattr(target, "factor", 9.0))


def case_code_exchanged_twice() -> Case:
    def helper(x: Any) -> Any:
        return x * 2

    def change() -> None:
        helper.__code__ = (lambda x: x * 3).__code__
        gc.collect()
        helper.__code__ = (lambda x: x * 4).__code__

    return Case(lambda x: helper(x), change)


class Slotted:
    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 2.0


def case_slot() -> Case:
    held = Slotted()
    return Case(lambda x: x * held.factor, lambda: setattr(held, "factor", 9.0))


def case_attribute_of_a_dict() -> Case:
    class Table(dict):  # type: ignore[type-arg]
        factor = 2.0

    held = Table(a=2.0)
    return Case(lambda x: x * held["a"] * held.factor, lambda: setattr(held, "factor", 9.0))


def case_attribute_of_a_tuple() -> Case:
    class Pair(tuple):  # type: ignore[type-arg]
        factor = 2.0

    held = Pair([2.0])
    return Case(lambda x: x * held[0] * held.factor, lambda: setattr(held, "factor", 9.0))


def case_enum_value() -> Case:
    class Choice(enum.Enum):
        A = 2

    return Case(lambda x: x * Choice.A.value, lambda: setattr(Choice.A, "_value_", 9))


def case_metaclass() -> Case:
    class Meta(type):
        factor = 2.0

    class Held(metaclass=Meta):
        pass

    return Case(lambda x: x * Held.factor, lambda: setattr(Meta, "factor", 9.0))


def case_bases_exchanged() -> Case:
    class One:
        def go(self, x: Any) -> Any:
            return x * 2

    class Other:
        def go(self, x: Any) -> Any:
            return x * 5

    class Held(One):
        pass

    held = Held()
    return Case(lambda x: held.go(x), lambda: setattr(Held, "__bases__", (Other,)))


class Stepper:
    factor = 2.0

    def __init__(self) -> None:
        self.shift = 3.0
        self.weight = torch.ones(3)

    @property
    def shifted(self) -> float:
        return self.shift

    def step(self, x: Any) -> Any:
        return x * self.factor * self.shifted + self.weight


def case_method_attribute() -> Case:
    held = Stepper()
    return Case(held.step, lambda: setattr(held, "shift", 7.0))


def case_method_attribute_over_the_class() -> Case:
    held = Stepper()
    return Case(held.step, lambda: setattr(held, "factor", 7.0))


def case_method_class_attribute() -> Case:
    held = Stepper()
    return Case(held.step, lambda: setattr(Stepper, "factor", 7.0), undo=lambda: setattr(Stepper, "factor", 2.0))


def case_method_tensor_replaced() -> Case:
    held = Stepper()
    return Case(held.step, lambda: setattr(held, "weight", torch.zeros(3)))


def case_method_in_a_partial() -> Case:
    held = Stepper()
    return Case(functools.partial(held.step), lambda: setattr(held, "shift", 7.0))


def case_global_tensor_in_place() -> Case:
    return Case(lambda x: x * TENSOR, lambda: TENSOR.mul_(3))


def case_global_tensor_through_data() -> Case:
    return Case(lambda x: x * TENSOR, lambda: TENSOR.data.mul_(3))


def case_global_tensor_through_numpy() -> Case:
    return Case(lambda x: x * TENSOR, lambda: TENSOR.numpy().__setitem__(0, 9))


def python_cases() -> dict[str, Callable[..., Case]]:
    return {name[5:].replace("_", " "): made for name, made in list(globals().items()) if name.startswith("case_")}
