"""On a GPU: torch.compile under ``hotstart run``, cold, torch's own warm, and ours after the directories were wiped.

Run on a machine with a GPU, from the root of the repository:

    CXX=/usr/bin/g++ PYTHONPATH=src python benchmarks/gpu/run_torch.py [--only gpt,resnet50] [--out FILE.json]

Needs torch with CUDA, blake3, xxhash and backports.zstd (or Python 3.14); transformers and torchvision
for two of the models, which are left out, and said so, where those are missing. Nothing is downloaded.

Every run is a fresh process. The first call is timed after the import and after the model stands on
its device. ``ptxas`` and the C++ compiler are wrapped by scripts that note each run that was given
something to compile. Prints one table, and one line of JSON at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hotstart.compilers.frameworks import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCRIPT = "import sys; from hotstart.cli.main import main; sys.exit(main())"

HEAD = """
import json, sys, time
began = time.perf_counter()
import torch
from torch import nn
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
"""

TAIL = """
torch.cuda.synchronize()
ready = time.perf_counter()
with torch.no_grad():
    found = compiled(*given)
torch.cuda.synchronize()
called = time.perf_counter()
with torch.no_grad():
    expected = model(*given)
found, expected = (getattr(value, "logits", value) for value in (found, expected))
worst = (found.float() - expected.float()).abs().max().item() / expected.float().abs().max().item()
if worst > 0.05:
    sys.exit(f"off by {worst}")
from torch._dynamo.utils import counters
seen = counters["inductor"]
print(json.dumps({"first call s": round(called - ready, 3), "import s": round(ready - began, 3),
                  "misses": seen["fxgraph_cache_miss"], "hits": seen["fxgraph_cache_hit"]}))
"""

GPT = """
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))

class Model(nn.Module):
    def __init__(self, width=768, heads=12, words=50304):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(12))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

model = Model().cuda().bfloat16().eval()
given = (torch.randint(0, 50304, (4, 256), device="cuda"),)
compiled = torch.compile(model, mode=MODE)
"""

LLAMA = """
from transformers import LlamaConfig, LlamaForCausalLM
size = dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16)
model = LlamaForCausalLM(LlamaConfig(num_key_value_heads=8, vocab_size=32000, use_cache=False, **size))
model = model.cuda().bfloat16().eval()
given = (torch.randint(0, 32000, (2, 256), device="cuda"),)
compiled = torch.compile(model)
"""

RESNET = """
from torchvision.models import resnet50
model = resnet50(weights=None).cuda().eval()
given = (torch.randn(8, 3, 224, 224, device="cuda"),)
compiled = torch.compile(model)
"""

#: name → (program, module without which it is left out)
MODELS = {
    "gpt": (GPT.replace("MODE", "None"), "torch"),
    "gpt max-autotune": (GPT.replace("MODE", '"max-autotune"'), "torch"),
    "llama": (LLAMA, "transformers"),
    "resnet50": (RESNET, "torchvision"),
}

NOTE = """#!/bin/sh
for word do case "$word" in -*) ;; *) echo {name} >> "{log}"; break ;; esac; done
exec "{real}" "$@"
"""


class World:
    """One model's home, compilers that are counted, and fresh processes."""

    def __init__(self, place: Path, program: str) -> None:
        self.place = place
        self.home = place / "hotstart"
        self.log = place / "compilers"
        place.mkdir(parents=True)
        (place / "model.py").write_text(HEAD + program + TAIL)
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("TORCHINDUCTOR_", "TRITON_"))},
            "HOTSTART_HOME": str(self.home),
        }
        cxx = os.environ.get("CXX") or shutil.which("g++") or "g++"
        self._wrap("g++", shutil.which(cxx) or cxx, "CXX")
        self._wrap("gcc", shutil.which("gcc") or "gcc", "CC")
        ask = "from triton.backends.nvidia.compiler import get_ptxas; print(get_ptxas(90).path)"
        found = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
        if found.returncode == 0:
            self._wrap("ptxas", found.stdout.strip(), "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")

    def _wrap(self, name: str, real: str, *variables: str) -> None:
        # One place for all models: the path of the compiler is part of torch's keys.
        wrapper = self.place / name
        wrapper.write_text(NOTE.format(name=name, log=self.log, real=real))
        wrapper.chmod(0o755)
        for variable in variables:
            self.environ[variable] = str(wrapper)

    def run(self, *, launcher: bool = True, more: dict[str, str] | None = None) -> dict[str, Any]:
        temporary = self.place / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        self.log.write_text("")
        start = [sys.executable, "-c", SCRIPT, "run"] if launcher else []
        began = time.perf_counter()
        done = subprocess.run(
            [*start, sys.executable, "model.py"],
            env={**self.environ, "TMPDIR": str(temporary), **(more or {})},
            cwd=self.place,
            capture_output=True,
            text=True,
            check=False,
        )
        whole = time.perf_counter() - began
        if done.returncode != 0:
            raise RuntimeError(f"ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
        said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        compilers = self.log.read_text().split()
        counts = {name: compilers.count(name) for name in sorted(set(compilers))}
        note = done.stderr.strip().splitlines()[-1:] if "hotstart:" in done.stderr else []
        return {**said, "whole command s": round(whole, 2), "compilers": counts, "said": note}


def measure(world: World) -> dict[str, Any]:
    """Cold; torch's own warm start with the directories as they were left; ours after they were deleted."""
    rows: dict[str, Any] = {"cold": world.run()}
    left = world.home / "frameworks"
    files = [path for path in left.rglob("*") if path.is_file()]
    rows["left behind"] = {"files": len(files), "MB": round(sum(path.stat().st_size for path in files) / 1e6, 1)}
    held = sum(path.stat().st_size for path in (world.home / "store").rglob("*") if path.is_file())
    rows["store MB"] = round(held / 1e6, 1)
    kept = world.place / "own"
    shutil.copytree(left, kept)
    own = environment(str(kept), only=["torch", "triton"])
    for path in kept.rglob("__grp__*.json"):  # Triton names its files by absolute path
        path.write_text(path.read_text().replace(str(left), str(kept)))
    rows["torch's own warm"] = best([world.run(launcher=False, more=own) for _ in range(2)])
    hot = []
    for _ in range(2):
        shutil.rmtree(left)
        hot.append(world.run())
    rows["ours, wiped"] = best(hot)
    return rows


def best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The faster first call, and the compilers of whichever run started more."""
    chosen = min(runs, key=lambda run: float(run["first call s"]))
    worst = max(runs, key=lambda run: sum(run["compilers"].values()))
    return {**chosen, "compilers": worst["compilers"], "all first calls s": [run["first call s"] for run in runs]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--out", type=Path, help="where to write the JSON as well")
    options = parser.parse_args()
    import torch

    result: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "models": {},
    }
    with tempfile.TemporaryDirectory(prefix="hotstart-gpu-") as place:
        for name in options.only.split(","):
            program, module = MODELS[name]
            print(f"{name} …", file=sys.stderr, flush=True)
            result["models"][name] = attempt(Path(place, name.replace(" ", "-")), program, module)
            if options.out:
                options.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result["models"])
    print(json.dumps(result))


def attempt(place: Path, program: str, module: str) -> dict[str, Any]:
    from importlib.util import find_spec

    if find_spec(module) is None:
        return {"left out": f"{module} is not installed"}
    try:
        return measure(World(place, program))
    except Exception as error:  # one model that fails leaves the others their time
        return {"failed": str(error)[-1500:]}


def show(models: dict[str, Any]) -> None:
    columns = ("cold", "torch's own warm", "ours, wiped")
    print(
        f"\n{'first call, s':<18}"
        + "".join(f"{name:>18}" for name in columns)
        + f"{'compilers, ours':>18}{'store MB':>10}"
    )
    for name, rows in models.items():
        if "cold" not in rows:
            print(f"{name:<18}{rows}")
            continue
        times = "".join(f"{rows[column]['first call s']:>18.2f}" for column in columns)
        started = sum(rows["ours, wiped"]["compilers"].values())
        print(f"{name:<18}{times}{started:>18}{rows['store MB']:>10}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
