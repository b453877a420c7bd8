"""Attempts to get a wrong result from a hit: each change, input and mode here must give what eager gives.

A package is made, loaded and called; then something is changed that a model may depend on,
or it is called in another way. The next call, and one of a process that begins now, must
be right: by another key, by a check of the call, or because it makes no difference.
"""

from __future__ import annotations

import array
import builtins
import collections
import dataclasses
import enum
import functools
import gc
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hot_staging import staged

from hotstart.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.torch.hot_staging import Stage

np: Any = pytest.importorskip("numpy", reason="needs numpy")
torch: Any = pytest.importorskip("torch", reason="needs torch (any build, no GPU)")
F: Any = torch.nn.functional
nn: Any = torch.nn


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("HOTSTART_HOME", str(tmp_path))
    return staged(Cache(f"{tmp_path}/store"), monkeypatch)


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


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, check_stride=False)
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype


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
    class Model(nn.Module):  # type: ignore[misc, name-defined]
        @property
        def factor(self) -> float:
            return FACTOR

        def forward(self, x: Any) -> Any:
            return x * self.factor

    change, undo = set_global("FACTOR", 3.0)
    return Case(Model(), change, undo=undo)


def case_getattr_of_a_model() -> Case:
    class Model(nn.Module):  # type: ignore[misc, name-defined]
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

    return Case(target, lambda: target.__defaults__[0].__setitem__(0, 5.0))


def case_keyword_default_in_place() -> Case:
    def target(x: Any, *, factor: float = 2.0) -> Any:
        return x * factor

    return Case(target, lambda: target.__kwdefaults__.update(factor=5.0))


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
    def change() -> None:
        ONE.clear()
        ONE.add(True)

    return Case(lambda x: x.bool() * next(iter(ONE)), change, undo=lambda: (ONE.clear(), ONE.add(1)))


def case_partial_set_anew() -> Case:
    held = functools.partial(lambda factor, x: x * factor, 2.0)
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


# -- modules and their tensors ------------------------------------------------------------


class Model(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.scale = 2.0
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)) * self.scale + self.shift


def of_a_model(change: Callable[[Any], object], undo: Callable[[], object] | None = None) -> Callable[[], Case]:
    def case() -> Case:
        torch.manual_seed(0)
        model = Model().eval()
        return Case(model, lambda: change(model), undo=undo)

    return case


_hooks: list[Any] = []


def _remove_hooks() -> None:
    while _hooks:
        _hooks.pop().remove()


def _double_all(model: Any) -> None:
    _hooks.append(torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 2))


def _double_before_all(model: Any) -> None:
    _hooks.append(torch.nn.modules.module.register_module_forward_pre_hook(lambda module, args: (args[0] * 2,)))


MODEL_CHANGES: dict[str, Callable[[], Case]] = {
    "attribute": of_a_model(lambda model: setattr(model, "scale", 3.0)),
    "data": of_a_model(lambda model: setattr(model.first.weight, "data", torch.randn(3, 3))),
    "tie broken": of_a_model(lambda model: setattr(model.second, "weight", nn.Parameter(torch.randn(3, 3)))),
    "requires_grad": of_a_model(lambda model: model.first.weight.requires_grad_(False)),
    "buffer of another dtype": of_a_model(lambda model: setattr(model, "shift", torch.ones(3).double())),
    "module exchanged": of_a_model(lambda model: setattr(model, "first", nn.Linear(3, 3))),
    "module of another class": of_a_model(lambda model: setattr(model, "second", nn.ReLU())),
    "pre hook": of_a_model(lambda model: model.first.register_forward_pre_hook(lambda module, args: (args[0] * 2,))),
    "hook": of_a_model(lambda model: model.register_forward_hook(lambda m, a, k, out: out * 2, with_kwargs=True)),
    "hook for all": of_a_model(_double_all, _remove_hooks),
    "pre hook for all": of_a_model(_double_before_all, _remove_hooks),
    "state assigned": of_a_model(
        lambda model: model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}, assign=True)
    ),
    "part of a flat parameter": of_a_model(lambda model: setattr(model.first.bias, "data", torch.randn(12)[5:8])),
    "forward of the instance": of_a_model(lambda model: setattr(model, "forward", lambda x: x)),
    "class exchanged": of_a_model(
        lambda model: setattr(model, "__class__", type("Other", (Model,), {"forward": lambda self, x: x}))
    ),
    "attribute of a parameter": of_a_model(lambda model: setattr(model.first.weight, "tag", True)),
}


def case_attribute_of_a_new_parameter() -> Case:
    class Tagged(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Any) -> Any:
            return x * self.weight * (3 if getattr(self.weight, "tag", False) else 2)

    model = Tagged()

    def change() -> None:
        model.weight = nn.Parameter(torch.ones(3))
        model.weight.tag = True

    return Case(model, change)


def case_input_is_a_parameter() -> Case:
    class Compares(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Any) -> Any:
            return x * 5 if x is self.weight else x * 2 + self.weight

    model = Compares()
    return Case(model, None, lambda: (nn.Parameter(torch.ones(3)),), lambda: (model.weight,))


# -- libraries ------------------------------------------------------------------------------


def patched(owner: Any, name: str, new: Any, target: Any, args: Any = rows) -> Case:
    missing = object()
    was = vars(owner).get(name, missing)
    return Case(
        target,
        lambda: setattr(owner, name, new),
        args,
        undo=lambda: delattr(owner, name) if was is missing else setattr(owner, name, was),
    )


def _attention() -> Any:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()

    class Uses(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, x: Any) -> Any:
            return self.attention(x, x, x, need_weights=False)[0]

    return Uses()


def _sequence() -> tuple[Any, ...]:
    return (torch.linspace(-1, 1, 48).reshape(2, 3, 8),)


LIBRARY_CHANGES: dict[str, Callable[[], Case]] = {
    "attention of F": lambda: patched(
        F, "scaled_dot_product_attention", lambda q, k, v, *a, **n: v * 2, _attention(), _sequence
    ),
    "two calls deep in F": lambda: patched(
        F, "_in_projection_packed", lambda q, *a: (q, q, q), _attention(), _sequence
    ),
    "torch.sigmoid under a layer": lambda: patched(torch, "sigmoid", lambda x: x * 3, nn.Sequential(nn.Sigmoid())),
    "torch.rms_norm under F under a layer": lambda: patched(
        torch, "rms_norm", lambda x, *a: x * 3, nn.Sequential(nn.RMSNorm(3))
    ),
    "method of Tensor under F": lambda: patched(
        torch.Tensor, "softmax", lambda self, *a, **n: self * 1, lambda x: F.softmax(x, -1)
    ),
    "operator of Tensor": lambda: patched(torch.Tensor, "__mul__", lambda self, other: self + other, lambda x: x * 3),
    "F of a layer's module": lambda: patched(
        torch.nn.modules.linear,
        "F",
        types.SimpleNamespace(linear=lambda x, w, b: x * 2),
        nn.Sequential(nn.Linear(3, 3)),
    ),
    "class of a library": lambda: patched(
        torch.nn.modules.activation.Tanh, "forward", lambda self, x: x * 9, nn.Sequential(nn.Tanh())
    ),
    "a helper of a layer's module": lambda: patched(
        torch.nn.modules.padding.ConstantPad1d,
        "forward",
        lambda self, x: x * 9,
        nn.Sequential(nn.ConstantPad1d(1, 0.0)),
    ),
}


def case_global_of_a_function_put_into_a_library(monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(F, "gelu", lambda x, approximate="none": x * FACTOR)
    change, undo = set_global("FACTOR", 5.0)
    return Case(nn.Sequential(nn.GELU()), change, undo=undo)


# -- arguments --------------------------------------------------------------------------------


@dataclasses.dataclass
class Batch:
    x: Any
    factor = 2.0

    @property
    def scaled(self) -> Any:
        return self.x * FACTOR

    def raised(self) -> Any:
        return self.x * self.factor


class Named(NamedTuple):
    x: Any
    factor: int


def _batch() -> tuple[Any, ...]:
    return (Batch(torch.ones(3)),)


def _tagged() -> tuple[Any, ...]:
    x = torch.ones(4, 3)
    x.tag = True
    return (x,)


def _overlapping_views() -> tuple[Any, ...]:
    whole = torch.arange(6.0)
    return whole[:4], whole[2:6]


def _overlapping_arrays() -> tuple[Any, ...]:
    whole = np.arange(6, dtype=np.float32)
    return torch.from_numpy(whole[:4]), torch.from_numpy(whole[2:6])


def _two() -> tuple[Any, ...]:
    return torch.ones(4), torch.ones(4)


def _twice() -> tuple[Any, ...]:
    x = torch.ones(4)
    return x, x


def writes(x: Any, y: Any) -> Any:
    x.add_(1)
    return x * y


def _imaginary() -> Any:
    return torch.ones(4, dtype=torch.complex64) * 1j


class Subclass(torch.Tensor):  # type: ignore[misc, name-defined]
    pass


def double(x: Any) -> Any:
    return x * 2


def first_of(d: Any) -> Any:
    ((key, value),) = d.items()
    return value.bool() * key


def optional(x: Any, y: Any = None) -> Any:
    return x * 2 if y is None else x * y


def many(*args: Any, factor: int = 1, **more: Any) -> Any:
    return args[0] * factor + sum(more.values()) + len(args)


def _batch_changes() -> dict[str, Callable[[], Case]]:
    def raises() -> Case:
        return Case(
            lambda batch: batch.raised(),
            lambda: setattr(Batch, "factor", 5.0),
            _batch,
            undo=lambda: setattr(Batch, "factor", 2.0),
        )

    def patched_method() -> Case:
        was = Batch.raised
        return Case(
            lambda batch: batch.raised(),
            lambda: setattr(Batch, "raised", lambda self: self.x * 50),
            _batch,
            undo=lambda: setattr(Batch, "raised", was),
        )

    def reads_global() -> Case:
        change, undo = set_global("FACTOR", 5.0)
        return Case(lambda batch: batch.scaled, change, _batch, undo=undo)

    return {"class attribute": raises, "method patched": patched_method, "global of a property": reads_global}


ARGUMENTS: dict[str, Callable[[], Case]] = {
    **_batch_changes(),
    "attribute of an input": lambda: Case(lambda x: x * (3 if getattr(x, "tag", False) else 2), None, rows, _tagged),
    "key 1 and True": lambda: Case(first_of, None, lambda: ({1: torch.ones(3)},), lambda: ({True: torch.ones(3)},)),
    "order of a dict": lambda: Case(
        lambda d: next(iter(d.values())) * 2,
        None,
        lambda: ({"a": torch.ones(3), "b": torch.zeros(3)},),
        lambda: ({"b": torch.zeros(3), "a": torch.ones(3)},),
    ),
    "named tuple": lambda: Case(
        lambda n: n.x * n.factor, None, lambda: (Named(torch.ones(3), 2),), lambda: (Named(torch.ones(3), 3),)
    ),
    "left out and None": lambda: Case(optional, None, lambda: (torch.ones(3),), lambda: (torch.ones(3), None)),
    "None and a tensor": lambda: Case(
        optional, None, lambda: (torch.ones(3), None), lambda: (torch.ones(3), torch.full((3,), 5.0))
    ),
    "keywords in another order": lambda: Case(many, factor=2, z=3, other_kwargs={"z": 2, "factor": 3}),
    "overlapping views written to": lambda: Case(writes, None, _two, _overlapping_views),
    "overlapping arrays written to": lambda: Case(writes, None, _two, _overlapping_arrays),
    "one tensor twice": lambda: Case(lambda x, y: x * 2 if x is y else x + y, None, _two, _twice),
    "conjugated": lambda: Case(lambda x: x * 2j, None, lambda: (_imaginary(),), lambda: (_imaginary().conj(),)),
    "negated": lambda: Case(double, None, lambda: (torch.ones(4),), lambda: (_imaginary().conj().imag,)),
    "expanded": lambda: Case(double, None, rows, lambda: (torch.ones(1, 3).expand(4, 3),)),
    "at an offset": lambda: Case(double, None, rows, lambda: (torch.arange(13.0)[1:].view(4, 3),)),
    "nothing in it": lambda: Case(double, None, rows, lambda: (torch.ones(0, 3),)),
    "a number": lambda: Case(double, None, lambda: (torch.tensor(2.0),), lambda: (torch.tensor(3.0),)),
    "a subclass": lambda: Case(double, None, rows, lambda: (torch.ones(4, 3).as_subclass(Subclass),)),
}

CASES: dict[str, Callable[..., Case]] = {
    **{name[5:].replace("_", " "): made for name, made in list(globals().items()) if name.startswith("case_")},
    **{f"model: {name}": made for name, made in MODEL_CHANGES.items()},
    **{f"library: {name}": made for name, made in LIBRARY_CHANGES.items()},
    **{f"argument: {name}": made for name, made in ARGUMENTS.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_a_hit_gives_what_eager_gives(stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = CASES[name]
    case = make(monkeypatch) if "monkeypatch" in make.__code__.co_varnames[: make.__code__.co_argcount] else make()
    with torch.no_grad():
        assert stage.build(case.target, *case.args(), **case.kwargs) == "published"
        compiled, plain = stage.compiled(case.target)
        same(compiled(*case.args(), **case.kwargs), case.target(*case.args(), **case.kwargs))
        assert plain.calls == 0, "there is no hit to try this on"
        try:
            if case.change is not None:
                case.change()
            wanted = case.target(*case.others(), **case.other_kwargs)
            same(compiled(*case.others(), **case.other_kwargs), wanted)
            fresh, _ = stage.compiled(case.target)
            same(fresh(*case.others(), **case.other_kwargs), wanted)
        finally:
            if case.undo is not None:
                case.undo()
