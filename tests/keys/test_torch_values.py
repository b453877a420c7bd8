"""Tensors, modules and kernels of torch and Triton in fingerprints and signatures, with the real libraries."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hotstart.errors import UncacheableError
from hotstart.keys.functions import fingerprint
from hotstart.keys.key import Key
from hotstart.keys.tensors import hash_value, tensor_signature

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    Program = Callable[..., AbstractContextManager[Any]]
    Fingerprint = Callable[..., str]

torch: Any = pytest.importorskip("torch", reason="needs torch (any build, no GPU)")


def test_tensors_count_by_content() -> None:
    base = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    assert hash_value(base) == hash_value(base.clone())
    forms = [
        *(base, base + 1, base.double(), base.reshape(3, 2), base.T.contiguous().T, base.bfloat16(), base[:, :0]),
        *(torch.nn.Parameter(base), base.clone().requires_grad_(), base.to(torch.complex64), base.bool()),
        *(base.numpy(), [base], torch.tensor(1.0), base.to(torch.float8_e4m3fn)),
    ]
    assert len({hash_value(form) for form in forms}) == len(forms)
    assert hash_value(base.to(torch.complex64).conj()) == hash_value(base.to(torch.complex64).conj())


@pytest.mark.parametrize("make", ["torch.ones(2, device='meta')", "torch.eye(2).to_sparse()"])
def test_tensors_without_plain_elements_are_refused(make: str) -> None:
    with pytest.raises(UncacheableError):
        hash_value(eval(make))


def test_signatures_of_tensors() -> None:
    base = torch.zeros(2, 3, 4, 5)
    channels_last = base.to(memory_format=torch.channels_last)
    assert tensor_signature(base)["strides"] == "contiguous"
    assert tensor_signature(base)["dtype"] == "float32"
    assert tensor_signature(channels_last)["strides"] == ("dense", (0, 2, 3, 1))
    assert tensor_signature(base[..., ::2])["strides"] == ("strided", (60, 20, 5, 2))
    complexes = torch.zeros(2, dtype=torch.complex64)
    others = [torch.eye(2), torch.eye(2).to_sparse(), torch.eye(2).half(), torch.eye(3), complexes, complexes.conj()]
    assert len({Key("k", inputs=tensor_signature(other)).digest for other in others}) == len(others)


def test_signatures_of_jagged_tensors() -> None:
    def nested(lengths: list[int]) -> Any:
        return torch.nested.nested_tensor([torch.zeros(n, 4) for n in lengths], layout=torch.jagged)

    one, other = nested([2, 3]), nested([2, 3])
    signature = tensor_signature(one)
    assert (signature["layout"], signature["jagged_dim"], signature["rank"]) == ("jagged", 1, 3)
    assert tensor_signature(one, one) != tensor_signature(one, other)
    assert tensor_signature(one) == tensor_signature(other)


def test_dynamic_sizes_are_symbols() -> None:
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    sources = importlib.import_module("torch._dynamo.source")
    environment = shapes.ShapeEnv()

    def size(name: str) -> Any:
        source = sources.ConstantSource(name)
        symbol = environment.create_symbol(5, source, dynamic_dim=shapes.DimDynamic.DYNAMIC)
        return environment.create_symintnode(symbol, hint=5, source=source)

    class Fake:
        dtype = torch.float32

        def __init__(self, *shape: Any) -> None:
            self.shape = shape

    s, t = size("s"), size("t")
    assert tensor_signature(Fake(s, s)) != tensor_signature(Fake(s, t))
    assert tensor_signature(Fake(s, s + 1)) != tensor_signature(Fake(s, t + 1))
    assert tensor_signature(Fake(s, s)) == tensor_signature(Fake(t, t))


MODEL = """
    import torch
    import torch.nn.functional as F
    SCALE = {scale}
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.k = {k}
        def forward(self, x): return F.{act}(self.linear(x)) * self.k * SCALE
    torch.manual_seed({seed})
    model = Block()
    @torch.no_grad()
    def f(x: torch.Tensor): return torch.relu(model(x)).to(torch.float32) + torch.ops.aten.relu(x)
"""


def test_a_model_counts_with_its_code_state_and_weights(tmp_path: Path, fingerprint_in: Fingerprint) -> None:
    base: dict[str, Any] = {"scale": 1, "k": 1, "act": "relu", "seed": 0}
    changes: list[dict[str, Any]] = [{}, {"scale": 2}, {"k": 2}, {"act": "gelu"}, {"seed": 1}]
    texts = [MODEL.format(**{**base, **change}) for change in changes]
    found = [fingerprint_in(tmp_path / str(at), text) for at, text in enumerate(texts)]
    assert len(set(found)) == len(changes)
    assert fingerprint_in(tmp_path / "again", texts[0]) == found[0]


def test_hooks_and_patches_of_a_model_count(tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    with program(tmp_path, MODEL.format(scale=1, k=1, act="relu", seed=0)) as main:
        seen = [fingerprint(main.f)]
        handle = main.model.register_forward_hook(lambda m, a, o: o + 1)
        seen.append(fingerprint(main.f))
        handle.remove()
        monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: x)
        seen.append(fingerprint(main.f))
        monkeypatch.undo()
        monkeypatch.setattr(torch, "relu", lambda x: x)
        seen.append(fingerprint(main.f))
        monkeypatch.undo()
        monkeypatch.setattr(main.model, "forward", lambda x: x)
        seen.append(fingerprint(main.f))
    assert len(set(seen)) == len(seen)


def test_a_switch_of_torch_that_is_read_counts(tmp_path: Path, program: Program) -> None:
    text = """
    import torch
    def f(x): return torch.backends.cuda.matmul.allow_tf32
    def g(x): return torch.backends.cudnn.benchmark
    """
    with program(tmp_path, text) as main:
        for function, owner, name in [
            (main.f, torch.backends.cuda.matmul, "allow_tf32"),
            (main.g, torch.backends.cudnn, "benchmark"),
        ]:
            before = fingerprint(function)
            value = getattr(owner, name)
            setattr(owner, name, not value)
            try:
                assert fingerprint(function) != before
            finally:
                setattr(owner, name, value)


def test_a_custom_operator_is_refused(tmp_path: Path, program: Program) -> None:
    text = """
    import torch
    @torch.library.custom_op("hotstart_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor: return x * 2
    def f(x): return torch.ops.hotstart_test.twice(x)
    def g(x): return torch.ops.hotstart_unknown.op(x)
    """
    with program(tmp_path, text) as main:
        for function in (main.f, main.g):
            with pytest.raises(UncacheableError, match="hotstart_"):
                fingerprint(function)
        main.f(torch.ones(1))  # now torch.ops remembers it
        with pytest.raises(UncacheableError, match="custom operator"):
            fingerprint(main.f)


def test_sympy_expressions_count_the_same_in_every_process() -> None:
    code = (
        "import sympy; from hotstart.keys.functions import fingerprint; s, t = sympy.symbols('s t', integer=True); "
        "E = [s * t + 1, sympy.pi]; hash(E[0]); f = lambda: E; print(fingerprint(f)); "
        "E[0] = s * t + 2; print(fingerprint(f)); "
        "E[0] = sympy.Symbol('s') * t + 1; print(fingerprint(f))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(set(outputs.pop().split())) == 3


def test_dynamo_is_not_imported() -> None:
    code = (
        "import sys, torch; from hotstart.keys.functions import fingerprint; "
        "f = lambda x: torch.nn.functional.relu(x) + torch._dynamo.config.cache_size_limit; fingerprint(f); "
        "print('torch._dynamo' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == "False\n", run.stderr


KERNEL = """
    import triton
    import triton.language as tl
    BLOCK = tl.constexpr({block})
    @triton.jit
    def helper(x): return x * {factor}
    @triton.jit{options}
    def kernel(x, n, B: {annotation}):
        offsets = tl.program_id(0) * B + tl.arange(0, B)
        inner: {local} = {constant}
        tl.store(x + offsets, helper(tl.load(x + offsets, mask=offsets < n)) + inner + BLOCK)
    @triton.autotune(configs=[triton.Config({{"B": {config}}}, num_warps={warps})], key=["n"])
    @triton.jit
    def tuned(x, n, B: tl.constexpr): kernel(x, n, B)
    f = tuned
"""


def test_triton_kernels_count_with_text_helpers_constants_and_configurations(
    tmp_path: Path, fingerprint_in: Fingerprint
) -> None:
    pytest.importorskip("triton", reason="needs Triton (no GPU)")
    base = {
        "block": 4,
        "factor": 2,
        "options": "",
        "annotation": "tl.constexpr",
        "local": "tl.constexpr",
        "constant": 1,
        "config": 16,
        "warps": 4,
    }
    changes: list[dict[str, Any]] = [
        {},
        {"block": 8},
        {"factor": 3},
        {"options": "(noinline=True)"},
        {"annotation": "int"},
        {"local": "int"},
        {"constant": 2},
        {"config": 32},
        {"warps": 8},
    ]
    found = []
    for at, change in enumerate(changes):
        found.append(fingerprint_in(tmp_path / str(at), KERNEL.format(**{**base, **change})))
    assert len(set(found)) == len(changes)
    assert fingerprint_in(tmp_path / "again", "\n\n" + KERNEL.format(**base)) == found[0]
