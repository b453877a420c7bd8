"""A step after the first: nothing runs in vain, one thread at a time, and a key that compiling does not change."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="needs torch (any build, no GPU)")

from hotstart.torch import state, versions  # noqa: E402
from hotstart.torch.key import Call  # noqa: E402
from hotstart.torch.package import OTHER, Package  # noqa: E402
from hotstart.torch.patched import patches  # noqa: E402

ABOUT: dict[str, Any] = {"outputs": ["t"], "mutated": [], "symbols": [], "conditions": []}


class Scaled(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.factor = 2

    def forward(self, x: Any) -> Any:
        return x * self.weight * self.factor


class Loader:
    """In the place of a loaded package: counts its runs, and how many of them there were at once."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.runs = 0
        self.at_once = 0
        self.most = 0
        self._seconds = seconds

    def run(self, tensors: list[Any]) -> list[Any]:
        self.runs += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        time.sleep(self._seconds)
        self.at_once -= 1
        return tensors[:1]


def on_a_gpu(model: Any, x: Any) -> Call:
    """The call as it would be with everything on a GPU, where Python's side is looked at after the launch."""
    call = Call(model, (x,), {}, {})
    call.device = ("cuda", -1)
    return call


def test_a_package_whose_model_changed_is_launched_once_and_not_again() -> None:
    model, x, loader = Scaled(), torch.ones(3), Loader()
    with torch.no_grad():
        package = Package(on_a_gpu(model, x), loader, ABOUT, "")
        assert package((x,), {}) is not OTHER
        model.factor = 3
        for _ in range(5):
            assert package((x,), {}) is OTHER
        assert loader.runs == 2
        package.attach(on_a_gpu(model, x))
        for _ in range(5):
            assert package((x,), {}) is not OTHER
        assert loader.runs == 7


def test_threads_take_turns() -> None:
    model, x, loader = Scaled(), torch.ones(3), Loader(0.02)
    with torch.no_grad():
        package = Package(Call(model, (x,), {}, {}), loader, ABOUT, "")

    def call() -> None:
        with torch.no_grad():
            package((x,), {})

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (loader.runs, loader.most) == (4, 1)


def test_what_inductor_sets_as_it_compiles_is_in_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRITON_PTXAS_PATH", "TORCH_WARM_POOL"):
        monkeypatch.delenv(name, raising=False)
    fresh = state.environment()
    monkeypatch.setenv("TRITON_PTXAS_PATH", versions.own_ptxas())
    monkeypatch.setenv("TORCH_WARM_POOL", "0")
    assert state.environment() == fresh


def test_a_ptxas_that_somebody_chose_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/opt/cuda/bin/ptxas")
    assert state.environment()["TRITON_PTXAS_PATH"] == "/opt/cuda/bin/ptxas"


def test_what_torch_draws_anew_in_every_process_is_in_no_key() -> None:
    contract = pytest.importorskip("torch.distributed._composable.contract", reason="needs torch with distributed")
    where = contract.__name__
    places = [(vars(contract), f"{where}.{name}", name) for name in ("REGISTRY_KEY", "STATE_KEY")]
    assert [at for at, _ in patches((), places, []) if at.startswith(where)] == []
