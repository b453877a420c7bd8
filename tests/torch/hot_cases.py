"""Models, libraries and arguments, changed behind a package that is loaded: cases of ``test_hostile``."""

from __future__ import annotations

import dataclasses
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torch.hot_python import Case, python_cases, rows
else:
    from hot_python import Case, python_cases, rows

np: Any = pytest.importorskip("numpy", reason="needs numpy")
torch: Any = pytest.importorskip("torch", reason="needs torch (any build, no GPU)")
F: Any = torch.nn.functional
nn: Any = torch.nn

FACTOR = 2.0


def set_factor(value: float) -> Callable[[], None]:
    return lambda: globals().__setitem__("FACTOR", value)


# -- modules and their tensors ------------------------------------------------------------


class Model(nn.Module):  # type: ignore[misc]
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
    class Tagged(nn.Module):  # type: ignore[misc]
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
    class Compares(nn.Module):  # type: ignore[misc]
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

    class Uses(nn.Module):  # type: ignore[misc]
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
    return Case(nn.Sequential(nn.GELU()), set_factor(5.0), undo=set_factor(2.0))


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


class Subclass(torch.Tensor):  # type: ignore[misc]
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
        return Case(lambda batch: batch.scaled, set_factor(5.0), _batch, undo=set_factor(2.0))

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
    **python_cases(),
    **{name[5:].replace("_", " "): made for name, made in list(globals().items()) if name.startswith("case_")},
    **{f"model: {name}": made for name, made in MODEL_CHANGES.items()},
    **{f"library: {name}": made for name, made in LIBRARY_CHANGES.items()},
    **{f"argument: {name}": made for name, made in ARGUMENTS.items()},
}
