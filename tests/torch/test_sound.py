"""Nothing that can change a result goes unnoticed: staged changes of model, code and settings, each a miss or harmless.

A change is made, and the key is asked for again: it must differ, or be refused, unless
eager says that the result is the same. Then the change is made behind a package that is
loaded already: the next call must give what eager gives.
"""

from __future__ import annotations

import contextlib
import os
import types
from typing import TYPE_CHECKING, Any

import pytest

from hotstart.torch import state
from hotstart.torch.key import Call
from hotstart.torch.reasons import NotHotError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.torch import hot_models as models

    Hot = Callable[..., tuple[Any, Any]]
    Change = Callable[[Any, pytest.MonkeyPatch], Any]
else:
    import hot_models as models

torch: Any = pytest.importorskip("torch", reason="needs torch (any build, no GPU)")
F: Any = torch.nn.functional


def digest(target: Any, *args: Any, **kwargs: Any) -> str:
    """The digest of the key, or what it was refused for."""
    try:
        return Call(target, args, kwargs, {}).key().digest
    except NotHotError as error:
        return f"refused: {error}"


# -- changes of the model -----------------------------------------------------------


def attribute(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.shift = 3


def attribute_type(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.shift = True


def attribute_of_a_child(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.blocks[0].heads = 4


def library_attribute(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.blocks[0].norm.eps = 0.5


def global_constant(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(models, "SCALE", 3.0)


def global_table(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(models.TABLE, "shift", 5)


def helper_replaced(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(models, "helper", lambda x: x * 7)


def helper_code(model: Any, patch: pytest.MonkeyPatch) -> None:
    def other(x: Any) -> Any:
        return x * SCALE * 9  # type: ignore[name-defined]  # noqa: F821  # of the module that it is put into

    patch.setattr(models.helper, "__code__", other.__code__)


def method_patched(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(models.Block, "forward", lambda self, x: x + 1)


def method_of_the_instance(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.blocks[0].forward = lambda x: x * 2


def library_method_patched(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.nn.Linear, "forward", lambda self, x: x @ self.weight.T)


def library_function_patched(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(F, "gelu", lambda x: x)


def library_function_exchanged(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(F, "gelu", F.relu)


def function_behind_a_library_method(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(F, "layer_norm", lambda x, *rest: x * 0.1)


def attention_patched(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, **rest: v * 2)


def function_two_calls_deep(model: Any, patch: pytest.MonkeyPatch) -> None:
    """nn.Embedding calls F.embedding, which calls this."""
    original = torch.embedding
    patch.setattr(torch, "embedding", lambda *args: original(*args) * 3)


def functions_of_a_layer(model: Any, patch: pytest.MonkeyPatch) -> None:
    """Not what is in the library's module, but what another one of its modules takes for it."""
    other = types.SimpleNamespace(linear=lambda x, weight, bias: F.linear(x, weight, bias) * 3)
    patch.setattr(torch.nn.modules.linear, "F", other)


def library_class_attribute(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.nn.Embedding, "forward", lambda self, x: F.embedding(x, self.weight) * 3)


def subclass(model: Any, patch: pytest.MonkeyPatch) -> None:
    class Louder(models.Block):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 10

    model.blocks[0].__class__ = Louder


def forward_hook(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.blocks[0].register_forward_hook(lambda module, args, out: out + 1)


def forward_pre_hook(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.head.register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def global_hook(model: Any, patch: pytest.MonkeyPatch) -> Any:
    return torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: out)


def parametrization(model: Any, patch: pytest.MonkeyPatch) -> None:
    class Half(torch.nn.Module):  # type: ignore[misc]
        def forward(self, weight: Any) -> Any:
            return weight / 2

    torch.nn.utils.parametrize.register_parametrization(model.blocks[0].out, "weight", Half())


def module_replaced(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.blocks[0].norm = torch.nn.Identity()


def module_added(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.blocks.append(models.Block(8, 2).eval())


def parameter_renamed(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.other = model.temperature
    del model.temperature
    patch.setattr(models.Former, "temperature", property(lambda self: self.other * 2), raising=False)


def bias_dropped(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.blocks[0].out.bias = None


def untied(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.head.weight = torch.nn.Parameter(model.head.weight.detach() * 2)


def tied_elsewhere(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.blocks[0].out.bias = model.blocks[0].norm.bias


def dtype(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.double()


def dtype_of_one(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.offset = model.offset.double()


def stride(model: Any, patch: pytest.MonkeyPatch) -> None:
    weight = model.blocks[0].out.weight
    weight.data = weight.detach().T.contiguous().T


def transposed_in_place(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.blocks[0].out.weight.t_()


def buffer_shape(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.offset = torch.ones(12)


def plain_tensor_shape(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.plain = torch.ones(1)


def tensor_becomes_number(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.plain = 3.0


def attribute_of_a_parameter(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.temperature.scale = 2


def training(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.train()


def default_dtype(model: Any, patch: pytest.MonkeyPatch) -> Any:
    return _set(torch.set_default_dtype, torch.float32, torch.float64)


def thread_count(model: Any, patch: pytest.MonkeyPatch) -> Any:
    return _set(torch.set_num_threads, torch.get_num_threads(), torch.get_num_threads() + 1)


def matmul_precision(model: Any, patch: pytest.MonkeyPatch) -> Any:
    torch.set_float32_matmul_precision("high")

    def undo() -> None:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision = "none"  # as it was: "highest" leaves another word there
        torch.backends.mkldnn.matmul.fp32_precision = "none"

    return _Undo(undo)


def deterministic(model: Any, patch: pytest.MonkeyPatch) -> Any:
    return _set(torch.use_deterministic_algorithms, False, True)


def sdp_backend(model: Any, patch: pytest.MonkeyPatch) -> Any:
    return _set(torch.backends.cuda.enable_flash_sdp, True, False)


def autocast(model: Any, patch: pytest.MonkeyPatch) -> Any:
    context = torch.autocast("cpu", dtype=torch.bfloat16)
    context.__enter__()
    return _Undo(lambda: context.__exit__(None, None, None))


def inference_mode(model: Any, patch: pytest.MonkeyPatch) -> Any:
    context = torch.inference_mode()
    context.__enter__()
    return _Undo(lambda: context.__exit__(None, None, None))


def grad_mode(model: Any, patch: pytest.MonkeyPatch) -> Any:
    return _set(torch.set_grad_enabled, False, True)


def default_device(model: Any, patch: pytest.MonkeyPatch) -> Any:
    return _set(torch.set_default_device, None, "cpu")


def function_mode(model: Any, patch: pytest.MonkeyPatch) -> Any:
    class Doubling(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            return made * 2 if function is F.gelu else made

    mode = Doubling()
    mode.__enter__()
    return _Undo(lambda: mode.__exit__(None, None, None))


def environment(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")


class _Undo:
    def __init__(self, remove: Callable[[], object]) -> None:
        self.remove = remove


def _set(setter: Callable[[Any], object], was: Any, value: Any) -> _Undo:
    setter(value)
    return _Undo(lambda: setter(was))


#: Settings that eager's result does not depend on here, but a compile may.
SETTINGS = (default_dtype, thread_count, matmul_precision, deterministic, sdp_backend, inference_mode, environment)
#: What counts in a key and is not looked at again once a package is loaded.
KEYED = (environment,)

CHANGES: tuple[Change, ...] = (
    *(attribute, attribute_type, attribute_of_a_child, library_attribute, global_constant, global_table),
    *(helper_replaced, helper_code, method_patched, method_of_the_instance, library_method_patched),
    *(library_function_patched, library_function_exchanged, function_behind_a_library_method, subclass),
    *(attention_patched, function_two_calls_deep, functions_of_a_layer, library_class_attribute),
    *(forward_hook, forward_pre_hook, global_hook, parametrization, module_replaced, module_added),
    *(parameter_renamed, bias_dropped, untied, tied_elsewhere, dtype, dtype_of_one, stride, transposed_in_place),
    *(buffer_shape, plain_tensor_shape, tensor_becomes_number, training, default_device, function_mode),
    *(autocast, grad_mode, attribute_of_a_parameter, *SETTINGS),
)


@pytest.fixture(autouse=True)
def settings_are_left_alone() -> Iterator[None]:
    """A test that leaves a setting behind would make the next one miss for the wrong reason."""
    before = state.describe(state.now())
    yield
    assert state.describe(state.now()) == before


@contextlib.contextmanager
def changed(change: Change, model: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        undo = change(model, patch)
        try:
            yield
        finally:
            if undo is not None:
                undo.remove()


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_another_key(change: Change) -> None:
    torch.manual_seed(0)
    model = models.former()
    with torch.no_grad():
        before = digest(model, models.tokens())
        assert before == digest(models.former(1), models.tokens())
        with changed(change, model):
            assert digest(model, models.tokens()) != before


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_after_the_package_was_loaded_is_seen(hot: Hot, change: Change) -> None:
    model = models.former(2)
    compiled, plain = hot("former", model)
    with torch.no_grad():
        compiled(models.tokens())
        assert plain.calls == 0
        with changed(change, model):
            made = compiled(models.tokens())
            torch.testing.assert_close(made, model(models.tokens()), rtol=1e-4, atol=1e-4)
            assert plain.calls == (0 if change in KEYED else 1)


def test_a_change_that_is_taken_back_hits_again(hot: Hot) -> None:
    model = models.former(2)
    compiled, plain = hot("former", model)
    with torch.no_grad():
        first = compiled(models.tokens())
        model.shift = 5
        compiled(models.tokens())
        model.shift = 1
        torch.testing.assert_close(compiled(models.tokens()), first)
    assert plain.calls == 1


INPUTS: dict[str, Callable[[], Any]] = {
    "more rows": lambda: models.tokens().repeat(2, 1),
    "longer": lambda: models.tokens().repeat(1, 2),
    "dtype": lambda: models.tokens().int(),
    "stride": lambda: models.tokens().T.contiguous().T,
    "a scalar more": lambda: models.tokens()[None][0][:1],
}


@pytest.mark.parametrize("name", INPUTS)
def test_other_inputs_are_not_for_this_package(hot: Hot, name: str) -> None:
    model = models.former(2)
    compiled, plain = hot("former", model)
    with torch.no_grad():
        compiled(models.tokens())
        other = INPUTS[name]()
        torch.testing.assert_close(compiled(other), model(other), rtol=1e-4, atol=1e-4)
        assert plain.calls == 1
        compiled(models.tokens())
        assert plain.calls == 1


@pytest.mark.parametrize(
    "other",
    [{"double": False}, {"double": 1}, {}, {"double": None}],
    ids=["another value", "another type", "left out", "none"],
)
def test_numbers_count_by_value_and_type(hot: Hot, other: dict[str, Any]) -> None:
    model = models.conv(2)
    compiled, plain = hot("conv", model)
    with torch.no_grad():
        compiled(models.image(), double=True)
        seen = float(model.seen)
        made = compiled(models.image(), **other)
        model.seen.fill_(seen)
        torch.testing.assert_close(made.logits, model(models.image(), **other).logits)
    assert plain.calls == 1


def test_memory_that_is_written_to_and_shared_is_refused(hot: Hot) -> None:
    model = models.conv(2)
    compiled, plain = hot("conv", model)
    with torch.no_grad():
        compiled(models.image(), double=True)
        model.norm.bias.data = model.seen.expand(4)[:4].clone()
        compiled(models.image(), double=True)
        assert plain.calls == 0
        shared = torch.zeros(8)
        model.seen = shared[:1]
        model.norm.bias.data = shared[4:8]
        compiled(models.image(), double=True)
    assert plain.calls == 1


def test_training_runs_on_torch_compile(hot: Hot) -> None:
    model = models.former(2)
    compiled, plain = hot("former", model)
    compiled(models.tokens()).sum().backward()
    assert plain.calls == 1
    assert model.temperature.grad is not None


def closure(value: Any) -> Callable[[Any], Any]:
    def compiled(x: Any) -> Any:
        return x * value

    return compiled


def reads_environment(x: Any) -> Any:
    return x * float(os.environ.get("HOTSTART_TEST_FACTOR", "1"))


def test_closures_count() -> None:
    x = torch.ones(2)
    values = [1, 1.0, True, 2, "a", (1, 2), torch.ones(2), torch.zeros(2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)]
    with torch.no_grad():
        found = [digest(closure(value), x) for value in values]
        assert len(set(found)) == len(found)
        assert digest(closure(torch.nn.Linear(2, 2)), x) == found[8]


def test_an_environment_variable_that_is_read_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(reads_environment, torch.ones(2))
    monkeypatch.setenv("HOTSTART_TEST_FACTOR", "2")
    assert digest(reads_environment, torch.ones(2)) != before


def test_decorators_count() -> None:
    x = torch.ones(2)

    def twice(function: Any) -> Any:
        return lambda x: function(function(x))

    base = closure(2)
    found = [digest(target, x) for target in (base, twice(base), torch.no_grad()(base), torch.inference_mode()(base))]
    assert len(set(found)) == len(found)


def test_options_and_modes_count() -> None:
    x = torch.ones(2)
    arguments: list[dict[str, Any]] = [{}, {"mode": "max-autotune"}, {"options": {"max_autotune": True}}]
    arguments += [{"options": {"shape_padding": False}}, {"options": {"epilogue_fusion": False}}]
    found = [Call(closure(2), (x,), {}, given).key().digest for given in arguments]
    assert len(set(found)) == len(found)
    for refused in ({"mode": "reduce-overhead"}, {"backend": "eager"}):
        with pytest.raises(NotHotError):
            Call(closure(2), (x,), {}, refused)


def test_a_weight_that_a_closure_also_holds_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    weight = model.weight
    model.register_forward_hook(lambda module, args, out: out + weight.sum())
    with torch.no_grad(), pytest.raises(NotHotError, match="closure"):
        Call(model, (torch.ones(2),), {}, {})


def test_the_same_tensor_twice_is_not_two_tensors() -> None:
    def both(x: Any, y: Any) -> Any:
        return x + y

    x, y = torch.ones(2), torch.ones(2)
    assert digest(both, x, x) != digest(both, x, y)
