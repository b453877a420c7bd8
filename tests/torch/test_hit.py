"""A hit: loaded without Dynamo, right for new weights, for changed weights, for every structure of result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.torch import hot_models as models
    from tests.torch.hot_children import child

    Hot = Callable[..., tuple[Any, Any]]
    Built = Callable[[str], Path]
else:
    import hot_models as models
    from hot_children import child

torch: Any = pytest.importorskip("torch", reason="needs torch (any build, no GPU)")

FRESH = """
import json, sys, time, torch
import hotstart.torch, hot_models as models
import torch.nn.functional
mine = "torch._dynamo" in sys.modules or "torch._inductor" in sys.modules
name = sys.argv[1]
target, args, kwargs = {
    "former": lambda: (models.former(7), (models.tokens(),), {}),
    "conv": lambda: (models.conv(7), (models.image(),), {"double": True}),
    "function": lambda: (models.plain_function, models.matrices(), {"power": 3}),
}[name]()
if name == "function":
    hotstart.torch.mark_dynamic(args[0], 0, max=64)
compiled = hotstart.torch.compile(target)
with torch.no_grad():
    started = time.perf_counter()
    made = compiled(*args, **kwargs)
    seconds = time.perf_counter() - started
    loaded = sorted(m for m in sys.modules if m.split(".")[:2] in (["torch", "_dynamo"], ["torch", "_inductor"]))
    if name == "conv":
        target.seen.zero_()
    wanted = target(*args, **kwargs)
first = lambda value: value[0] if isinstance(value, tuple) else getattr(value, "logits", value)
print(json.dumps({"loaded": loaded, "before": mine, "seconds": seconds,
                  "off": float((first(made) - first(wanted)).abs().max())}))
"""


@pytest.mark.parametrize("name", ["former", "conv", "function"])
def test_a_fresh_process_hits_without_dynamo(built: Built, name: str) -> None:
    run = child(built(name), FRESH, name)
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert said["loaded"] == []
    assert said["off"] < 1e-4


def test_new_weights_hit_and_are_used(hot: Hot) -> None:
    results = []
    for seed in (1, 2):
        model = models.former(seed)
        compiled, plain = hot("former", model)
        with torch.no_grad():
            results.append(compiled(models.tokens()))
            torch.testing.assert_close(results[-1], model(models.tokens()), rtol=1e-4, atol=1e-4)
        assert plain.calls == 0
    assert not torch.allclose(*results)


def _shrink(model: Any) -> None:
    model.words.weight.mul_(0.5)


def _replace(model: Any) -> None:
    model.temperature = torch.nn.Parameter(torch.tensor(3.0))


def _exchange_data(model: Any) -> None:
    model.blocks[0].mix.weight.data = torch.randn_like(model.blocks[0].mix.weight)


def _load(model: Any) -> None:
    model.load_state_dict(models.former(9).state_dict())


def _assign(model: Any) -> None:
    state = models.former(9).state_dict()
    state["head.weight"] = state["words.weight"]
    model.load_state_dict(state, assign=True)
    model.head.weight = model.words.weight


def _buffer(model: Any) -> None:
    model.offset.fill_(5.0)


def _new_buffer(model: Any) -> None:
    model.offset = torch.tensor([7.0])


def _plain_tensor(model: Any) -> None:
    model.plain[3] = 100.0


def _new_plain_tensor(model: Any) -> None:
    model.plain = torch.full((12,), 8.0)


@pytest.mark.parametrize(
    "change",
    [_shrink, _replace, _exchange_data, _load, _assign, _buffer, _new_buffer, _plain_tensor, _new_plain_tensor],
)
def test_changed_weights_are_seen_by_the_next_call(hot: Hot, change: Callable[[Any], None]) -> None:
    model = models.former(3)
    compiled, plain = hot("former", model)
    with torch.no_grad():
        before = compiled(models.tokens())
        change(model)
        after = compiled(models.tokens())
        torch.testing.assert_close(after, model(models.tokens()), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(before, after)
    assert plain.calls == 0


def test_a_buffer_that_forward_writes_to_is_written(hot: Hot) -> None:
    model, other = models.conv(3), models.conv(3)
    compiled, plain = hot("conv", model)
    with torch.no_grad():
        for at in range(3):
            made, wanted = compiled(models.image(), double=True), other(models.image(), double=True)
            torch.testing.assert_close(made.logits, wanted.logits)
            assert float(model.seen) == float(other.seen) == float(made.extra["seen"]) == at + 1
    assert plain.calls == 0


def test_structures_come_back(hot: Hot) -> None:
    compiled, plain = hot("conv", models.conv(3))
    with torch.no_grad():
        made = compiled(models.image(), double=True)
    assert type(made) is models.Answer
    assert made.note == "conv"
    assert list(made.extra) == ["seen", "none"]
    assert made.extra["none"] == (None, 3)
    assert plain.calls == 0


def test_a_marked_dimension_takes_every_size_in_its_range(hot: Hot) -> None:
    import hotstart.torch

    compiled, plain = hot("function", models.plain_function)
    _, y = models.matrices()
    with torch.no_grad():
        first = torch.randn(4, 3)
        hotstart.torch.mark_dynamic(first, 0, max=64)
        compiled(first, y, power=3)
        for rows in (2, 5, 64):
            x = torch.randn(rows, 3)
            for made, wanted in zip(compiled(x, y, power=3), models.plain_function(x, y, power=3), strict=True):
                torch.testing.assert_close(made, wanted)
        assert plain.calls == 0
        for x in (torch.randn(65, 3), torch.randn(1, 3), torch.randn(3, 5).T):
            for made, wanted in zip(compiled(x, y, power=3), models.plain_function(x, y, power=3), strict=True):
                torch.testing.assert_close(made, wanted)
        assert plain.calls == 3


def test_check_compares_with_eager_and_passes(hot: Hot) -> None:
    model = models.conv(4)
    compiled, plain = hot("conv", model, check=True)
    with torch.no_grad():
        compiled(models.image(), double=True)
    assert float(model.seen) == 1.0
    assert plain.calls == 0


def test_it_behaves_as_what_torch_compile_returns(hot: Hot, tmp_path: Path) -> None:
    import pickle

    model = models.former(5)
    compiled, _ = hot("former", model)
    assert list(compiled.state_dict()) == ["_orig_mod." + name for name in model.state_dict()]
    assert compiled.shift == 1 and compiled.words is model.words
    compiled.shift = 4
    assert model.shift == 4
    assert compiled.train() is compiled and model.training
    assert not compiled.eval().training and not model.training
    assert isinstance(compiled, torch.nn.Module)
    with pytest.raises(ValueError, match="_orig_mod"):
        pickle.dumps(compiled)
