"""On a GPU: first call of a model, cold, with torch's caches warm, and through ``hotstart.torch.compile``.

Run on a machine with a GPU, from the root of the repository:

    PYTHONPATH=src python benchmarks/gpu/torch_compile.py [gpt] [gpt-autotune] [llama] [resnet50] [gpt-train]

``--cpu --quick`` runs the same with small models on a CPU. Every figure is of a fresh
process and begins when the model stands on its device and its first output has been
computed eagerly, so that CUDA, cuBLAS and cuDNN are loaded. Packages are built in the
background while the next model is compiled cold, as they would be at a user's; what is
compared is measured afterwards, with nothing else running. Prints progress on stderr, a
table, and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CASES = {
    "gpt": ("GPT 12 layers", None),
    "gpt-autotune": ("GPT 12 layers, max-autotune", "max-autotune"),
    "llama": ("HF Llama 16 layers", None),
    "resnet50": ("resnet50", None),
    "gpt-train": ("GPT 12 layers, training step", None),
}
#: Unless some are named: training has no packages, and is there to show what its caches give.
USUAL = ("gpt", "gpt-autotune", "llama", "resnet50")
#: Relative deviation (root mean square) from eager that a result may have.
TOLERANCE = {"torch.bfloat16": 3e-2, "torch.float32": 1e-3}
ROUNDS, STEPS = 7, 30


# -- models ---------------------------------------------------------------------


def gpt(quick: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, t, d = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class GPT(nn.Module):  # type: ignore[misc]
        def __init__(self, layers: int, width: int, heads: int, words: int, length: int) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    if quick:
        return GPT(2, 32, 4, 64, 16), (torch.randint(64, (2, 16)),), {}
    return GPT(12, 768, 12, 50304, 1024), (torch.randint(50304, (8, 512)),), {}


def llama(quick: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import importlib

    import torch

    transformers: Any = importlib.import_module("transformers")
    sizes = (64, 128, 2, 4, 2, 128) if quick else (1024, 2816, 16, 16, 8, 32000)
    width, inner, layers, heads, groups, words = sizes
    configuration = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        vocab_size=words,
        max_position_embeddings=2048,
    )
    tokens = torch.randint(words, (1, 16) if quick else (4, 512))
    return transformers.LlamaForCausalLM(configuration), (tokens,), {"use_cache": False}


def resnet50(quick: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import torch
    from torch import nn

    class Bottleneck(nn.Module):  # type: ignore[misc]
        def __init__(self, inner: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.norm1 = nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
            self.norm2 = nn.BatchNorm2d(width)
            self.conv3, self.norm3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
            self.short = None
            if stride != 1 or inner != 4 * width:
                self.short = nn.Sequential(
                    nn.Conv2d(inner, 4 * width, 1, stride=stride, bias=False), nn.BatchNorm2d(4 * width)
                )

        def forward(self, x: Any) -> Any:
            found = torch.relu(self.norm1(self.conv1(x)))
            found = self.norm3(self.conv3(torch.relu(self.norm2(self.conv2(found)))))
            return torch.relu(found + (x if self.short is None else self.short(x)))

    class ResNet(nn.Module):  # type: ignore[misc]
        def __init__(self, blocks: tuple[int, ...]) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64)
            layers: list[Any] = []
            inner = 64
            for at, count in enumerate(blocks):
                for number in range(count):
                    layers.append(Bottleneck(inner, 64 << at, 2 if at and not number else 1))
                    inner = 4 * (64 << at)
            self.layers, self.head = nn.Sequential(*layers), nn.Linear(inner, 1000)

        def forward(self, x: Any) -> Any:
            x = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 3, stride=2, padding=1)
            return self.head(self.layers(x).mean((2, 3)))

    if quick:
        return ResNet((1,)), (torch.randn(1, 3, 32, 32),), {}
    return ResNet((3, 4, 6, 3)), (torch.randn(32, 3, 224, 224),), {}


MODELS: dict[str, Callable[[bool], tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {
    "gpt": gpt,
    "gpt-autotune": gpt,
    "llama": llama,
    "resnet50": resnet50,
    "gpt-train": gpt,
}


# -- one process ------------------------------------------------------------------


def ready(case: str, device: str, quick: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any], Any]:
    """The model and its inputs on the device, and what eager makes of them."""
    import torch

    torch.manual_seed(0)
    model, args, kwargs = MODELS[case](quick)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = model.to(device=device, dtype=dtype).eval()
    args = tuple(tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype) for tensor in args)
    wanted = output(model(*args, **kwargs))
    wait(device)
    return model, args, kwargs, wanted


def output(made: Any) -> Any:
    return getattr(made, "logits", made)


def wait(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def deviation(found: Any, wanted: Any) -> float:
    found, wanted = found.double(), wanted.double()
    return float((found - wanted).pow(2).mean().sqrt() / wanted.pow(2).mean().sqrt())


def steady(functions: dict[str, Callable[[], Any]], device: str) -> dict[str, float]:
    """Milliseconds of a step for each, measured in turns: median of the rounds."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(5):
            function()
    for _ in range(ROUNDS):
        for name, function in functions.items():
            wait(device)
            started = time.perf_counter()
            for _ in range(STEPS):
                function()
            wait(device)
            times[name].append((time.perf_counter() - started) / STEPS * 1e3)
    return {name: round(statistics.median(found), 4) for name, found in times.items()}


def worker(way: str, case: str, device: str, quick: bool) -> dict[str, Any]:
    import torch

    mode = CASES[case][1]
    answer: dict[str, Any] = {}
    if case == "gpt-train":
        return training(device, quick)
    with torch.no_grad():
        model, args, kwargs, wanted = ready(case, device, quick)
        if way == "build":
            import hotstart.torch

            started = time.perf_counter()
            said = hotstart.torch.warm(model, *args, **kwargs, compile_kwargs={"mode": mode} if mode else {})
            return {"event": said["event"], "reason": said["reason"], "s": round(time.perf_counter() - started, 1)}
        # CUDA graphs are left out on both sides: a package has none.
        plain_mode = "max-autotune-no-cudagraphs" if mode == "max-autotune" else mode
        before = "torch._dynamo" in sys.modules
        started = time.perf_counter()
        if way == "ours":
            import hotstart.torch

            compiled = hotstart.torch.compile(model, promote="never", mode=mode)
        else:
            compiled = torch.compile(model, mode=plain_mode)
        made = output(compiled(*args, **kwargs))
        wait(device)
        answer["first s"] = round(time.perf_counter() - started, 3)
        answer["dynamo added"] = "torch._dynamo" in sys.modules and not before
        answer["dynamo by others"] = before
        answer["off"] = round(deviation(made, wanted), 5)
        answer["right"] = answer["off"] < TOLERANCE[str(wanted.dtype)]
        if way == "ours":
            answer["hit"] = bool(compiled._engine._packages)
            answer["why not"] = "" if answer["hit"] else why_not(model, args, kwargs, mode)
            plain = torch.compile(model, mode=plain_mode)
            plain(*args, **kwargs)
            others = count_others(compiled._engine)
            both = {"ours": lambda: compiled(*args, **kwargs), "torch": lambda: plain(*args, **kwargs)}
            answer["step ms"] = steady(both, device)
            answer["ratio"] = round(answer["step ms"]["ours"] / answer["step ms"]["torch"], 4)
            answer["steps by torch.compile"] = len(others)
    return answer


def count_others(engine: Any) -> list[None]:
    """A list that grows by one with each call that no package serves."""
    calls: list[None] = []
    run = engine.run_plain

    def counted(args: Any, kwargs: Any) -> Any:
        calls.append(None)
        return run(args, kwargs)

    engine.run_plain = counted
    return calls


def why_not(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mode: str | None) -> str:
    """What differs from the package that was built, or why no key can be made."""
    import hotstart
    from hotstart.torch.key import Call

    last = hotstart.torch.records()[-1]
    try:
        key = Call(model, args, kwargs, {"mode": mode}).key()
        return f"last record: {last}; {hotstart.open().explain(key)}"
    except Exception as error:
        return f"last record: {last}; {error}"


def training(device: str, quick: bool) -> dict[str, Any]:
    """The first step, through hotstart, which leaves it to torch.compile: cold or warm by what its caches hold."""
    import hotstart.torch

    model, args, kwargs, _ = ready("gpt-train", device, quick)
    model.zero_grad()
    wait(device)
    started = time.perf_counter()
    compiled = hotstart.torch.compile(model)
    output(compiled(*args, **kwargs)).float().mean().backward()
    wait(device)
    taken = round(time.perf_counter() - started, 3)
    return {"first s": taken, "why plain": hotstart.torch.records()[-1]["reason"]}


# -- all of them --------------------------------------------------------------------


class Bench:
    def __init__(self, root: str, device: str, quick: bool) -> None:
        self.root, self.device, self.quick = root, device, quick
        self.began = time.perf_counter()

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def start(self, way: str, case: str) -> subprocess.Popen[str]:
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src")
        environment = {
            **os.environ,
            "HOTSTART_HOME": f"{self.root}/home",
            "TORCHINDUCTOR_CACHE_DIR": f"{self.root}/caches",
            "PYTHONPATH": os.pathsep.join([os.path.abspath(source), os.environ.get("PYTHONPATH", "")]),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, os.path.abspath(__file__), "--worker", way, case]
        command += ["--cpu"] * (self.device == "cpu") + ["--quick"] * self.quick
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, way: str, case: str, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = process.communicate(timeout=500)
        answer = dict(json.loads(out.splitlines()[-1])) if process.returncode == 0 else {"failed": err[-800:]}
        self.say(f"{case} {way}: {json.dumps(answer)}")
        return answer

    def run(self, cases: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {case: {} for case in cases}
        building = {}
        for case in cases:
            self.say(f"{case}: cold")
            found[case]["cold"] = self.finish("cold", case, self.start("cold", case))
            if case == "gpt-train":
                found[case]["warm"] = self.finish("warm", case, self.start("warm", case))
                found[case]["ours"] = {}
                continue
            self.say(f"{case}: its package is built in the background")
            building[case] = self.start("build", case)
        for case, process in building.items():
            found[case]["build"] = self.finish("build", case, process)
        for case in building:
            for way in ("warm", "ours"):
                found[case][way] = self.finish(way, case, self.start(way, case))
        return found


def table(found: dict[str, Any]) -> str:
    rows = ["| model | cold | torch warm | ours | Dynamo added | off from eager | step, ours / torch.compile |"]
    rows.append("|---|---|---|---|---|---|---|")
    for case, runs in found.items():
        ours = runs["ours"]
        cells = [f"{runs[way].get('first s', 'failed')} s" for way in ("cold", "warm")]
        if case == "gpt-train":
            rows.append(f"| {CASES[case][0]} | " + " | ".join(cells) + " | runs as torch.compile | | | |")
            continue
        cells.append(f"{ours.get('first s', 'failed')} s" + ("" if ours.get("hit") else " (no hit)"))
        added = "yes" if ours.get("dynamo added") else "no"
        cells.append(added + (" (its library does)" if ours.get("dynamo by others") else ""))
        cells.append(str(ours.get("off")))
        cells.append(f"{ours.get('ratio')} ({ours.get('step ms')})")
        rows.append(f"| {CASES[case][0]} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def judge(found: dict[str, Any]) -> list[str]:
    """What falls short of what is claimed; empty when nothing does."""
    short = []
    for case, runs in found.items():
        ours = runs["ours"]
        if case == "gpt-train":
            continue
        limit = 0.5 if case.startswith("gpt") else 1.0
        if not ours.get("hit"):
            short.append(f"{case}: no hit ({ours.get('why not') or ours.get('failed') or runs['build']})")
            continue
        if ours["first s"] >= limit:
            short.append(f"{case}: first call {ours['first s']} s, not under {limit}")
        if ours["dynamo added"]:
            short.append(f"{case}: Dynamo was imported")
        if not ours["right"]:
            short.append(f"{case}: off from eager by {ours['off']}")
        if ours["steps by torch.compile"]:
            short.append(f"{case}: {ours['steps by torch.compile']} steps were torch.compile's")
        if ours["ratio"] > 1.03:
            short.append(f"{case}: a step takes {ours['ratio']} of torch.compile's")
    return short


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help="which models; all unless given")
    parser.add_argument("--cpu", action="store_true", help="on the CPU")
    parser.add_argument("--quick", action="store_true", help="small models")
    parser.add_argument("--root", help="an empty folder for stores and caches, which is kept")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = "cpu" if arguments.cpu else "cuda"
    if arguments.worker:
        print(json.dumps(worker(arguments.worker, arguments.cases[0], device, arguments.quick)))
        return 0
    import torch

    cases = arguments.cases or list(USUAL)
    root = arguments.root or tempfile.mkdtemp(prefix="hotstart-torch-")
    try:
        found = Bench(root, device, arguments.quick).run(cases)
    finally:
        if not arguments.root:
            shutil.rmtree(root, ignore_errors=True)
    short = judge(found)
    print(table(found))
    for line in short:
        print(f"short: {line}")
    about = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu",
    }
    print(json.dumps({**about, "found": found, "short": short}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
