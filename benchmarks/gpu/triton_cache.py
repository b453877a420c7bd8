"""On a GPU: Triton and torch.compile through our cache manager, cold, warm, moved, damaged, tuned.

Run on a machine with a GPU, from the root of the repository:

    PYTHONPATH=src python benchmarks/gpu/triton_cache.py

Prints one line of JSON. Each part runs in fresh processes and is told apart: one that
fails leaves its error there and the others go on. Compiles are counted where they
cannot be missed: ``ptxas`` and the C compiler are wrapped by scripts that note each run.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MANAGER = "hotstart.compilers.triton:CacheManager"
PROCESSES, KERNELS = 8, 20

# Launches twenty kernels and checks what they computed.
LAUNCH = f"""
import json, time
import torch

x = torch.arange(4096, device="cuda", dtype=torch.float32)
torch.cuda.synchronize()
import kernels
right, times, began = True, [], time.perf_counter()
for n in range(1, {KERNELS} + 1):
    y = torch.empty_like(x)
    started = time.perf_counter()
    getattr(kernels, f"kernel_{{n}}")[(4,)](x, y, 4096, B=1024)
    torch.cuda.synchronize()
    times.append(time.perf_counter() - started)
    right = right and bool(torch.equal(y, x * n + n))
times.sort()
answer = {{"right": right, "all ms": round((time.perf_counter() - began) * 1e3, 2),
          "p50 ms": round(times[len(times) // 2] * 1e3, 3)}}
"""

KERNEL = """
@triton.jit
def kernel_{n}(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) * {n} + {n}, mask=i < n)
"""

TUNE = """
import json, sys
import torch, triton
import kernels
from hotstart.compilers import triton_itself
answer = {"device": triton_itself.device_name(), "without torch": triton_itself._name_from_cuda(0)}
if len(sys.argv) > 1:
    triton_itself.device_name = lambda: sys.argv[1]
tuned = triton.autotune([triton.Config({"B": b}, num_warps=w) for b in (256, 1024) for w in (4, 8)], key=["n"])(
    kernels.kernel_1)
seen = []
bench = tuned._bench
tuned._bench = lambda *args, **kwargs: (seen.append(1), bench(*args, **kwargs))[1]
x = torch.arange(1 << 16, device="cuda", dtype=torch.float32)
y = torch.empty_like(x)
tuned[lambda meta: (triton.cdiv(1 << 16, meta["B"]),)](x, y, 1 << 16)
answer.update(timed=len(seen), right=bool(torch.equal(y, x + 1)))
"""

# A small transformer through torch.compile: many Triton kernels, forward and backward.
INDUCTOR = """
import json, time
import torch
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda().train()
data = torch.randn(8, 64, 256, device="cuda")
expected = model(data)
expected.square().mean().backward()
wanted = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
torch.cuda.synchronize()
began = time.perf_counter()
compiled = torch.compile(model)
got = compiled(data)
got.square().mean().backward()
torch.cuda.synchronize()
taken = time.perf_counter() - began
from torch._dynamo.utils import counters
close = torch.allclose(got, expected, atol=2e-3, rtol=2e-3)
close = close and all(torch.allclose(p.grad, w, atol=2e-3, rtol=2e-2) for p, w in zip(model.parameters(), wanted))
counted = {name: count for name, count in counters["inductor"].items() if "triton" in name or "fxgraph" in name}
answer = {"right": close, "first step s": round(taken, 3), "inductor": counted}
"""

ANSWER = """
import sys
module = sys.modules.get("hotstart.compilers.triton")
print(json.dumps({**answer, "stats": module.stats() if module else {}}))
"""

NOTE = """#!/bin/sh
case "$*" in *" -o "*) echo "$PPID" >> "{log}";; esac
exec "{real}" "$@"
"""


class Bench:
    """A directory with kernels, wrapped compilers, and programs to run in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        head = "import triton, triton.language as tl\n"
        (root / "kernels.py").write_text(head + "".join(KERNEL.format(n=n) for n in range(1, KERNELS + 1)))
        self.environment = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1"}
        paths = [str(root), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        self.environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths if path)
        self._wrap("ptxas", self._real_ptxas(), "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
        self._wrap("cc", shutil.which("gcc") or shutil.which("clang") or "cc", "CC")

    def _real_ptxas(self) -> str:
        ask = "from triton.backends.nvidia.compiler import get_ptxas; print(get_ptxas(90).path)"
        return subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()

    def _wrap(self, name: str, real: str, *variables: str) -> None:
        wrapper = self.root / name
        wrapper.write_text(NOTE.format(log=self.root / f"{name}.log", real=real))
        wrapper.chmod(0o755)
        for variable in variables:
            self.environment[variable] = str(wrapper)

    def runs_of(self, name: str) -> int:
        log = self.root / f"{name}.log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def home(self, name: str, **more: str) -> dict[str, str]:
        """Variables for Triton through a store under this name."""
        return {
            "TRITON_CACHE_MANAGER": MANAGER,
            "HOTSTART_HOME": str(self.root / name),
            "TRITON_CACHE_DIR": str(self.root / name / "chosen"),
            **more,
        }

    def theirs(self, name: str, **more: str) -> dict[str, str]:
        """Variables for Triton's own manager."""
        return {"TRITON_CACHE_DIR": str(self.root / name), **more}

    def start(self, program: str, variables: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program + ANSWER, *arguments]
        return subprocess.Popen(
            command, env={**self.environment, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, program: str, variables: dict[str, str], *arguments: str) -> dict[str, Any]:
        """What the program answered, with the compiles it caused and the seconds it took."""
        before = {name: self.runs_of(name) for name in ("ptxas", "cc")}
        began = time.perf_counter()
        answer = finish(self.start(program, variables, *arguments))
        answer["process s"] = round(time.perf_counter() - began, 2)
        for name, count in before.items():
            answer[name] = self.runs_of(name) - count
        return answer


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    if process.returncode:
        return {"failed": err[-600:]}
    return dict(json.loads(out.splitlines()[-1]))


def launching(bench: Bench, runs: dict[str, Any]) -> None:
    """Cold and warm, ours beside Triton's own, in turns; then without the laid-out files, then moved, then damaged."""
    runs["ours cold"] = bench.run(LAUNCH, bench.home("a"))
    runs["its own cold"] = bench.run(LAUNCH, bench.theirs("own"))
    for number in range(1, 4):
        runs[f"ours warm {number}"] = bench.run(LAUNCH, bench.home("a"))
        runs[f"its own warm {number}"] = bench.run(LAUNCH, bench.theirs("own"))
    shutil.rmtree(bench.root / "a" / "chosen")
    runs["ours, from the store alone"] = bench.run(LAUNCH, bench.home("a"))
    os.rename(bench.root / "a", bench.root / "b")
    os.rename(bench.root / "own", bench.root / "moved")
    runs["ours moved"] = bench.run(LAUNCH, bench.home("b"))
    runs["its own moved"] = bench.run(LAUNCH, bench.theirs("moved"))
    for cubin in (bench.root / "b" / "chosen").glob("*/kernel_1.cubin"):
        cubin.write_bytes(cubin.read_bytes()[:100])
    runs["ours, a cubin truncated"] = bench.run(LAUNCH, bench.home("b"))
    for cubin in (bench.root / "moved").glob("*/kernel_1.cubin"):
        cubin.write_bytes(cubin.read_bytes()[:100])
    runs["its own, a cubin truncated"] = bench.run(LAUNCH, bench.theirs("moved"))


def together(bench: Bench, runs: dict[str, Any]) -> None:
    """Eight processes on an empty store: twenty compiles."""
    before = bench.runs_of("ptxas")
    processes = [bench.start(LAUNCH, bench.home("together")) for _ in range(PROCESSES)]
    answers = [finish(process) for process in processes]
    runs["compiles"] = bench.runs_of("ptxas") - before
    runs["right"] = [answer.get("right", answer) for answer in answers]


def tuning(bench: Bench, runs: dict[str, Any]) -> None:
    """Timed once per device name; ``device`` must be the name of the card, from torch and from the driver."""
    variables = bench.home("tuned", TRITON_CACHE_AUTOTUNING="1")
    runs["cold"] = bench.run(TUNE, variables)
    runs["warm"] = bench.run(TUNE, variables)
    runs["another device"] = bench.run(TUNE, variables, "NVIDIA H100 PCIe 114")
    runs["back again"] = bench.run(TUNE, variables)


def inductor(bench: Bench, runs: dict[str, Any]) -> None:
    """torch.compile undisturbed: same counters and times as with Triton's own manager; and with its own caches lost."""
    for label, variables in {"ours": bench.home("inductor"), "its own": bench.theirs("inductor own")}.items():
        caches = str(bench.root / f"caches {label}")
        variables["TORCHINDUCTOR_CACHE_DIR"] = caches
        runs[f"{label}, cold"] = bench.run(INDUCTOR, variables)
        runs[f"{label}, warm"] = bench.run(INDUCTOR, variables)
        # Inductor's caches are lost, and what lies in Triton's directory; only the store stays.
        shutil.rmtree(caches)
        if label == "ours":
            shutil.rmtree(variables["TRITON_CACHE_DIR"])
        runs[f"{label}, Inductor's caches lost"] = bench.run(INDUCTOR, variables)
    # As most people have it: no TRITON_CACHE_DIR, Inductor chooses one under its own.
    variables = {name: value for name, value in bench.home("chosen").items() if name != "TRITON_CACHE_DIR"}
    variables["TORCHINDUCTOR_CACHE_DIR"] = str(bench.root / "caches chosen")
    runs["ours, directory chosen by Inductor, cold"] = bench.run(INDUCTOR, variables)
    runs["ours, directory chosen by Inductor, warm"] = bench.run(INDUCTOR, variables)


def main() -> None:
    import torch
    import triton

    result: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }
    parts: list[Callable[[Bench, dict[str, Any]], None]] = [launching, together, tuning, inductor]
    with tempfile.TemporaryDirectory() as root:
        bench = Bench(Path(root))
        for part in parts:
            runs: dict[str, Any] = {}
            result[part.__name__] = runs
            try:
                part(bench, runs)
            except Exception:
                runs["failed"] = traceback.format_exc()[-600:]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
