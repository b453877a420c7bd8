"""hotstart.torch on a CPU: what a hit costs a fresh process, and what it costs every call after that.

Three programs (a small transformer, a convolutional net, a plain function) are built once
and then loaded by fresh processes: key, load and first call, with ``import torch`` and the
model done. Beside it torch.compile with all its caches warm. Then the checks that every
call makes, for a GPT of 12 layers and some 150 parameters, without the call itself.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter_ns

from .common import Target, places, save, say, table
from .common import targets_table as show_targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMES = ("transformer", "convolutional", "function")
CHECKS = ("all", "settings", "tensors in place", "metadata", "Python's side")

PROGRAMS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

class GPT(nn.Module):
    def __init__(self, layers, width=64):
        super().__init__()
        self.words, self.places = nn.Embedding(128, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 128, bias=False)
    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[
            nn.Sequential(nn.Conv2d(n, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for n in (3, 8, 8)])
        self.head = nn.Linear(8, 10)
    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))

def function(x, y):
    return torch.softmax(x @ y, -1).relu() + x.sin().sum()

def make(name):
    torch.manual_seed(0)
    if name == "transformer":
        return GPT(2).eval(), (torch.randint(128, (2, 32)),)
    if name == "convolutional":
        return Net().eval(), (torch.randn(4, 3, 32, 32),)
    return function, (torch.randn(64, 64), torch.randn(64, 64))
"""

BUILD = """
import sys, torch, hotstart.torch, programs
target, args = programs.make(sys.argv[1])
with torch.no_grad():
    said = hotstart.torch.warm(target, *args)
    torch.compile(target)(*args)
assert said["event"] in ("published", "hit"), said
print("{}")
"""

FIRST = """
import json, sys, time, torch, programs
target, args = programs.make(sys.argv[1])
with torch.no_grad():
    target(*args)
    started = time.perf_counter()
    if sys.argv[2] == "ours":
        import hotstart.torch
        compiled = hotstart.torch.compile(target, promote="never")
    else:
        compiled = torch.compile(target)
    compiled(*args)
    taken = time.perf_counter() - started
loaded = any(name.startswith(("torch._dynamo", "torch._inductor")) for name in sys.modules)
print(json.dumps({"ms": taken * 1e3, "dynamo": loaded}))
"""


def run(out: Path, *, quick: bool) -> list[Target]:
    rows, found = [], {}
    targets = []
    with places() as spots:
        place = Path(spots["disk"])
        (place / "programs.py").write_text(PROGRAMS)
        for name in NAMES:
            say(f"building {name}")
            _child(place, BUILD, name)
            times: dict[str, list[float]] = {"ours": [], "torch": []}
            for _ in range(3 if quick else 7):
                for way in times:
                    said = _child(place, FIRST, name, way)
                    if way == "ours" and said["dynamo"]:
                        raise RuntimeError(f"{name}: no hit, or Dynamo was imported")
                    times[way].append(said["ms"])
            ours, theirs = (statistics.median(times[way]) for way in ("ours", "torch"))
            rows.append([name, ours, max(times["ours"]), theirs, theirs / ours])
            found[name] = {way: [round(ms, 2) for ms in sorted(values)] for way, values in times.items()}
            targets.append(Target("key, load and first call, ms", name, ours, 100))
        checks = _checks(place, 200 if quick else 2000)
    table("First call of a fresh process, ms", ["program", "ours p50", "max", "torch.compile warm p50", "×"], rows)
    table("Checks of every call, GPT of 12 layers, µs", ["what", "p50"], [[name, checks[name]] for name in CHECKS])
    show_targets("Targets", targets)
    save(out, "torch_hit", {"first call": found, "checks µs": checks, "targets": [t.record() for t in targets]})
    return targets


def _child(place: Path, code: str, *arguments: str) -> dict[str, Any]:
    environment = {
        **os.environ,
        "HOTSTART_HOME": str(place / "home"),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "caches"),
        "PYTHONPATH": str(place),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


class _Nothing:
    """In the place of a package: what is measured is what comes before it."""

    def run(self, tensors: list[Any]) -> list[Any]:
        return tensors[:1]


def _checks(place: Path, count: int) -> dict[str, float]:
    from importlib import import_module

    from hotstart.torch import state
    from hotstart.torch.key import Call
    from hotstart.torch.package import Package

    torch: Any = import_module("torch")
    sys.path.insert(0, str(place))
    try:
        namespace = vars(import_module("programs"))
    finally:
        sys.path.remove(str(place))
    model, args = namespace["GPT"](12).eval(), (torch.randint(128, (2, 32)),)
    with torch.no_grad():
        call = Call(model, args, {}, {})
        package = Package(call, _Nothing(), {"outputs": ["t"], "mutated": [], "symbols": [], "conditions": []}, "")
        slots = call.survey.slots
        tensors = [*call.survey.tensors, *args]
        parts = {
            "all": lambda: package(args, {}),
            "settings": state.now,
            "tensors in place": lambda: [container[name] for container, name in slots],
            "metadata": lambda: package._guards.check(*tensors),
            "Python's side": package._watch.same,
        }
        found: dict[str, float] = {"tensors": len(tensors)}
        for name, part in parts.items():
            times = []
            for _ in range(count):
                began = perf_counter_ns()
                part()
                times.append(perf_counter_ns() - began)
            found[name] = round(statistics.median(times) / 1e3, 2)
    return found
