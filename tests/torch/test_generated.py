"""Generated models: two that have the same key compute the same.

Each example is a small program with its own source: expressions over weights, buffers,
globals, closures, helpers, attributes and library functions. Its key and what eager makes
of one input are compared with every example before it: equal keys mean equal results. One
of the programs has a package; whoever has its key is served by it and compared with eager.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotstart.torch.key import Call
from hotstart.torch.reasons import NotHotError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.torch.hot_programs import PLAIN, PROGRAM

    from hotstart.cache import Cache
else:
    from hot_programs import PLAIN, PROGRAM

torch: Any = pytest.importorskip("torch", reason="needs torch (any build, no GPU)")

numbers = st.sampled_from(["1", "1.0", "2", "0.5", "True", "-1"])
CHOICES: dict[str, st.SearchStrategy[str]] = {
    "factor": numbers,
    "table": st.sampled_from(["[1, 2]", "(1, 2)", "[2, 1]", "{0: 1, 1: 2}", "{1: 2, 0: 1}", "[1, 2.5]"]),
    "default": numbers,
    "helper": st.sampled_from(["x * scale", "x + scale", "scale * x", "torch.sin(x) * scale", "x"]),
    "inner": st.sampled_from(["", " + value", " - 1", " * 1"]),
    "closed": st.sampled_from(["1", "2", "1.0", "torch.ones(4)", "torch.full((4,), 2.0)"]),
    "limit": st.sampled_from(["0.5", "1", "1.5"]),
    "finish": st.sampled_from(["x.clamp(max=self.limit)", "x", "x + self.limit", "torch.relu(x)", "x.float()"]),
    "layer": st.sampled_from(
        ["Identity()", "ReLU()", "GELU()", "GELU('tanh')", "LayerNorm(4)", "LayerNorm(4, eps=0.1)"]
    ),
    "k": numbers,
    "override": st.sampled_from(["", "    def finish(self, x):\n        return x - 1\n", "    limit = 0.25\n"]),
    "one": st.sampled_from(["first", "second"]),
    "two": st.sampled_from(["first", "second"]),
    "order": st.sampled_from(["", ".flip(0)", ".T.contiguous().T", " ** 2"]),
    "function": st.sampled_from(["sigmoid", "tanh", "relu", "abs"]),
    "bound": st.sampled_from(["0", "1"]),
    "loops": st.sampled_from(["0", "1", "2"]),
    "after": st.sampled_from(
        [
            "",
            "    made.register_forward_hook(lambda module, args, out: out * 2)\n",
            "    made.second.weight = made.first.weight\n",
            "    made.first.bias = None\n",
            "    made.first.forward = made.second.forward\n",
            "    made.k = 3\n",
            "    made.third.eps = 0.7\n",
        ]
    ),
}
changes = st.lists(st.sampled_from(sorted(CHOICES)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: CHOICES[name] for name in names})
)


def program(directory: Path, choices: dict[str, str], name: str) -> Any:
    """The program as a module, loaded from its own file."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.py").write_text(PROGRAM.format(**choices), encoding="utf-8")
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    try:
        sys.modules.pop(name, None)
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(directory))


def test_equal_keys_mean_equal_results(
    ranks: Path, cache_of: Callable[[Path], Cache], tmp_path_factory: pytest.TempPathFactory
) -> None:
    import hotstart.torch

    cache = cache_of(ranks)
    results: dict[str, Any] = {}
    served = []
    x = torch.linspace(-2, 2, 16).reshape(4, 4)
    threads = torch.get_num_threads()
    root = tmp_path_factory.mktemp("programs")
    count = iter(range(1 << 30))

    @settings(max_examples=200, suppress_health_check=list(HealthCheck))
    @given(changes)
    def check(made: dict[str, str]) -> None:
        name = f"generated_{next(count)}"
        module = program(root / name, {**PLAIN, **made}, name)
        model = module.model()
        with torch.no_grad():
            try:
                key = Call(model, (x,), {}, {}).key().digest
            except NotHotError:
                return
            wanted = model(x)
            if key in results:
                torch.testing.assert_close(wanted, results[key], rtol=0, atol=0)
            results[key] = wanted
            compiled = hotstart.torch.compile(model, cache=cache, promote="never")
            compiled._engine._plain = lambda *args: model(*args)
            torch.testing.assert_close(compiled(x), wanted, rtol=1e-4, atol=1e-5)
            served.append(bool(compiled._engine._packages))
        sys.modules.pop(name, None)

    torch.set_num_threads(1)  # as the ranks have it
    try:
        check()
    finally:
        torch.set_num_threads(threads)
    assert len(results) > 20, "the examples hardly differ"
    assert any(served) and not all(served), "the package was never, or always, the one"
