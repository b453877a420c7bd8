"""Attempts to get a wrong result from a hit: each change, input and mode here must give what eager gives.

A package is made, loaded and called; then something is changed that a model may depend on,
or it is called in another way. The next call, and one of a process that begins now, must
be right: by another key, by a check of the call, or because it makes no difference.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.torch.hot_cases import CASES, Model
    from tests.torch.hot_python import NUMBERS, rows
    from tests.torch.hot_staging import Stage, same
else:
    from hot_cases import CASES, Model
    from hot_python import NUMBERS, rows
    from hot_staging import same

torch: Any = pytest.importorskip("torch", reason="needs torch (any build, no GPU)")
F: Any = torch.nn.functional

FACTOR = 2.0
GENERATOR = torch.Generator()


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


# -- what cannot be keyed is refused ----------------------------------------------------


@functools.cache
def remembered(n: int) -> float:
    return n * FACTOR


REFUSED: dict[str, tuple[Any, str]] = {
    "an lru_cache with something in it": (lambda x: x * remembered(3), "cache_clear()"),
    "hash": (lambda x: x * (hash("abc") % 7), "asks hash"),
    "id": (lambda x: x * (id(NUMBERS) % 7), "asks id"),
    "seed": (lambda x: x * torch.initial_seed(), "asks torch.initial_seed"),
    "rank": (lambda x: x * torch.distributed.get_rank(), "asks torch.distributed.get_rank"),
    "offset": (lambda x: x * (1 + x.storage_offset()), "reads storage_offset"),
    "version": (lambda x: x * (1 + x._version), "reads _version"),
    "gradient": (lambda x: x * (2 if x.grad is None else 3), "reads grad"),
    "a view": (lambda x: x * (2 if x._is_view() else 3), "reads _is_view"),
    "being exported": (lambda x: x * (3 if torch.compiler.is_exporting() else 2), "something else when it is traced"),
    "being compiled": (lambda x: x * (3 if torch.compiler.is_compiling() else 2), "something else when it is traced"),
    "type of a tensor": (lambda x: x * (3 if type(x) is torch.Tensor else 2), "something else when it is traced"),
    "random": (lambda x: x + torch.rand(3), "be random"),
    "generator": (lambda x: x + torch.rand(3, generator=GENERATOR), "cannot be read"),
    "an input given back": (lambda x: x, "return a copy"),
    "a view given back": (lambda x: (x * 2, x[0]), "return a copy"),
    "results that share memory": (lambda x: (lambda y: (y, y[0]))(x * 2), "return a copy"),
    "a set of what it changes": (lambda x, held=[]: x * (held.append(1) or len(held)), "changed attributes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_keyed_or_kept_is_refused(stage: Stage, name: str) -> None:
    target, reason = REFUSED[name]
    remembered(3)
    with torch.no_grad():
        if name == "rank":
            with pytest.raises(ValueError, match="initialized"):  # as eager does
                stage.build(target, *rows())
            import hotstart.torch

            assert reason in hotstart.torch.records()[-1]["reason"]
        else:
            assert reason in stage.build(target, *rows())
    assert not len(stage.cache)


def test_an_lru_cache_that_was_empty_is_no_obstacle(stage: Stage) -> None:
    remembered.cache_clear()

    def target(x: Any) -> Any:
        return x * remembered(4)

    with torch.no_grad():
        assert stage.build(target, *rows()) == "published"
        remembered.cache_clear()
        compiled, plain = stage.compiled(target)
        same(compiled(*rows()), rows()[0] * 4 * FACTOR)
        assert plain.calls == 0
        remembered(4)
        same(compiled(*rows()), target(*rows()))
        assert plain.calls == 1


# -- modes around a call ------------------------------------------------------------------


class Doubling(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        return made * 2 if function is F.linear else made


def test_one_function_mode_is_not_another(stage: Stage) -> None:
    """A default device is a mode as well: the number of modes says nothing."""

    def target(x: Any) -> Any:
        return F.linear(x, torch.ones(3, 3))

    with torch.no_grad():
        try:
            torch.set_default_device("cpu")
            assert stage.build(target, *rows()) == "published"
            compiled, plain = stage.compiled(target)
            same(compiled(*rows()), target(*rows()))
            assert plain.calls == 0
            torch.set_default_device(None)
            with Doubling():
                same(compiled(*rows()), target(*rows()))
            torch.set_default_device("meta")
            assert compiled(rows_on_cpu()).device.type == target(rows_on_cpu()).device.type
        finally:
            torch.set_default_device(None)


def rows_on_cpu() -> Any:
    return torch.ones(4, 3, device="cpu")


def test_transforms_and_tangents_are_not_lost(stage: Stage) -> None:
    import torch.autograd.forward_ad as forward_ad
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.manual_seed(0)
    model = Model().eval()
    with torch.no_grad():
        assert stage.build(model, *rows()) == "published"
        compiled, plain = stage.compiled(model)
        compiled(*rows())
        many = torch.randn(5, 4, 3)
        same(torch.vmap(compiled)(many), torch.vmap(model)(many))
        assert plain.calls == 1
        for found, wanted in zip(
            torch.func.jvp(compiled, rows(), rows()), torch.func.jvp(model, rows(), rows()), strict=True
        ):
            same(found, wanted)
        assert plain.calls == 2
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(*rows(), *rows())
            same(forward_ad.unpack_dual(compiled(dual)).tangent, forward_ad.unpack_dual(model(dual)).tangent)
        assert plain.calls == 3
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert type(compiled(torch.ones(4, 3))).__name__ == "FakeTensor"
        assert plain.calls == 4
        compiled(*rows())
        assert plain.calls == 4


def test_threads_at_once_and_a_copy_and_a_child_are_right(stage: Stage) -> None:
    import copy
    import os
    import threading

    torch.manual_seed(0)
    model = Model().eval()
    wrong: list[float] = []
    with torch.no_grad():
        assert stage.build(model, *rows()) == "published"
    compiled, plain = stage.compiled(model)

    def work(seed: int) -> None:
        with torch.no_grad():
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
            for _ in range(20):
                off = float((compiled(x) - model(x)).abs().max())
                if off > 1e-5:
                    wrong.append(off)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, plain.calls) == ([], 0)
    copied = copy.deepcopy(compiled)
    copied._orig_mod.scale = 7.0
    copied._engine._plain = copied._orig_mod
    with torch.no_grad():
        same(copied(*rows()), copied._orig_mod(*rows()))
        same(compiled(*rows()), model(*rows()))
        pid = os.fork()
        if pid == 0:
            off = float((compiled(*rows()) - model(*rows())).abs().max())
            os._exit(0 if off < 1e-5 and plain.calls == 0 else 1)
        assert os.waitpid(pid, 0)[1] == 0


def test_hooks_of_the_compiled_object_run(stage: Stage) -> None:
    compiled, _ = stage.compiled(Model().eval())
    with torch.no_grad():
        before = compiled(*rows())
        compiled.register_forward_hook(lambda module, args, out: out * 2)
        same(compiled(*rows()), before * 2)
