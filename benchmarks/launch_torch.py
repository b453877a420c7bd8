"""``hotstart run`` with torch.compile on a CPU: a transformer of eight blocks, cold and hot, in fresh processes.

The first call of the compiled model is timed, after the import and after the model stands. Compiler
processes are counted by stand-ins on PATH that write each call down and go on to the real one.

    cold                     nothing is there
    torch's own warm         torch with its directory as it left it, and the same settings: its best
    hot                      under hotstart run, after the redirected directories and $TMPDIR were deleted
    hot, moved               the store at another place, another user name, another HOME
    other install path       torch of the same files, imported through another path
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from hotstart.compilers.frameworks import environment

from .common import Target, bars, figure, places, save, save_plot, say, table
from .common import targets_table as show_targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCRIPT = "import sys; from hotstart.cli.main import main; sys.exit(main())"

MODEL = """
import json, sys, time
began = time.perf_counter()
import torch
from torch import nn

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
    def __init__(self, blocks, width=128, heads=4, words=512):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

torch.manual_seed(0)
with torch.no_grad():
    model = Model(int(sys.argv[1]))
    ids = torch.arange(32).view(2, 16)
    expected = model(ids)
    ready = time.perf_counter()
    found = torch.compile(model)(ids)
    called = time.perf_counter()
    torch.testing.assert_close(found, expected)
from torch._dynamo.utils import counters
seen = counters["inductor"]
print(json.dumps({"first call s": round(called - ready, 3), "process s": round(called - began, 3),
                  "misses": seen["fxgraph_cache_miss"], "hits": seen["fxgraph_cache_hit"]}))
"""

COUNTED = ("cc", "c++", "gcc", "g++", "clang", "clang++", "ld", "as", "cc1plus")

COLD, OWN, HOT, MOVED, ELSEWHERE = (
    "cold",
    "torch's own warm",
    "hotstart: hot",
    "hotstart: hot, moved",
    "hotstart: other install path",
)


class World:
    """One user's directories, and the compilers that this user has."""

    def __init__(self, place: str, blocks: int) -> None:
        self.place = Path(place)
        self.blocks = blocks
        self.home = self.place / "hotstart"
        self.user = "somebody"
        self.shims = self.place / "bin"
        self.log = self.place / "compilers"
        self.shims.mkdir(parents=True)
        (self.place / "model.py").write_text(MODEL)
        for name in COUNTED:
            real = shutil.which(name)
            if real is not None:
                (self.shims / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "{self.log}"\nexec "{real}" "$@"\n')
                (self.shims / name).chmod(0o755)

    def run(self, *, launcher: bool = True, more: dict[str, str] | None = None) -> dict[str, Any]:
        """One fresh process, its temporary directory empty; what it says, and how many compilers were started."""
        temporary, home = self.place / "tmp", self.place / f"home-{self.user}"
        shutil.rmtree(temporary, ignore_errors=True)
        for directory in (temporary, home):
            directory.mkdir(exist_ok=True)
        self.log.write_text("")
        inherited = {
            name: os.environ[name] for name in ("LANG", "LD_LIBRARY_PATH", "OMP_NUM_THREADS") if name in os.environ
        }
        environ = {
            **inherited,
            "PATH": f"{self.shims}:{os.environ['PATH']}",
            "HOME": str(home),
            "USER": self.user,
            "LOGNAME": self.user,
            "TMPDIR": str(temporary),
            "HOTSTART_HOME": str(self.home),
            "PYTHONPATH": os.pathsep.join(place for place in sys.path if place),
            **(more or {}),
        }
        start = [sys.executable, "-c", SCRIPT, "run"] if launcher else []
        began = perf_counter()
        done = subprocess.run(
            [*start, sys.executable, str(self.place / "model.py"), str(self.blocks)],
            env=environ,
            cwd=self.place,
            capture_output=True,
            text=True,
            check=False,
        )
        whole = perf_counter() - began
        if done.returncode != 0:
            raise SystemExit(f"the model failed:\n{done.stdout}{done.stderr}")
        said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        compiles = [line for line in self.log.read_text().splitlines() if not _is_question(line)]
        return {**said, "whole command s": round(whole, 3), "compilers": len(compiles)}

    def wipe(self) -> None:
        shutil.rmtree(self.home / "frameworks")


def _is_question(line: str) -> bool:
    """Asked for its version a compiler is given options and nothing else."""
    return all(word.startswith("-") for word in line.split()[1:])


def run(out: Path, *, quick: bool) -> list[Target]:
    blocks, rounds = (2, 1) if quick else (8, 3)
    with places() as found:
        world = World(f"{found['disk']}/world", blocks)
        rows = measure(world, rounds)
    rows_shown = [
        [name, *(row[label] for label in ("first call s", "process s", "whole command s")), row["compilers"]]
        for name, row in rows.items()
    ]
    table(
        f"torch.compile, transformer of {blocks} blocks, on the CPU",
        ["", "first call s", "in the process s", "whole command s", "compilers"],
        rows_shown,
    )
    targets = [
        Target("hot first call / torch's own warm", "cpu", rows[HOT]["first call s"] / rows[OWN]["first call s"], 1.2),
        Target("compilers started when hot", "cpu", float(rows[HOT]["compilers"]), 0.0),
        Target("compilers started when moved", "cpu", float(rows[MOVED]["compilers"]), 0.0),
    ]
    show_targets("launch_torch: what was promised", targets)
    save(
        out,
        "launch_torch",
        {"blocks": blocks, "runs": rows, "targets": [target.record() for target in targets]},
    )
    drawing, axes = figure(1, 1, 6.4, 1.9)
    bars(
        axes[0][0],
        "torch.compile, first call, s",
        {name: float(row["first call s"]) for name, row in rows.items()},
        log=True,
    )
    save_plot(out, "launch_torch", drawing)
    return targets


def measure(world: World, rounds: int) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    rows[COLD] = world.run()
    say(f"launch_torch: cold {rows[COLD]['first call s']} s")
    kept = world.place / "own"
    shutil.copytree(world.home / "frameworks", kept)
    own, hot = [], []
    for _ in range(rounds):
        own.append(world.run(launcher=False, more=environment(str(kept), only=["torch", "triton"])))
        world.wipe()
        hot.append(world.run())
    rows[OWN], rows[HOT] = _middle(own), _middle(hot)
    say(f"launch_torch: own warm {rows[OWN]['first call s']} s, hot {rows[HOT]['first call s']} s")
    world.wipe()
    moved = world.place / "elsewhere" / "hotstart"
    moved.parent.mkdir()
    world.home.rename(moved)
    world.home, world.user = moved, "another"
    rows[MOVED] = world.run()
    world.wipe()
    rows[ELSEWHERE] = world.run(more={"PYTHONPATH": _other_path(world)})
    return rows


def _other_path(world: World) -> str:
    """The same packages, found through a link: torch then names other include directories to the compiler."""
    import torch

    packages = Path(torch.__file__).parent.parent
    link = world.place / "another-place"
    link.symlink_to(packages)
    rest = [place for place in sys.path if place and Path(place) != packages]
    return os.pathsep.join([str(link), *rest])


def _middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median first call; the compilers of the worst."""
    middle = median(run["first call s"] for run in runs)
    chosen = min(runs, key=lambda run: abs(float(run["first call s"]) - middle))
    return {**chosen, "compilers": max(run["compilers"] for run in runs)}
