"""Triton: a warm ``triton.compile`` through our manager beside its own file manager.

Twenty kernels, compiled before; both managers take turns, in one process (each
compile timed) and in fresh processes (each one's first compile, in which Triton
hashes itself and a manager is imported, and the others). Fresh processes that install
our manager by hand, which remembers Triton's hash of itself, are a third contender;
importing and opening everything counts as part of their first compile. All read their
files from directories of the same depth: Triton takes paths apart, and long ones cost more.

Triton's manager checks nothing of what it serves; ours reads and checks every byte.

Times are processor time of the calling thread. A warm compile reads from the page
cache and waits for nothing, and the difference looked for is some hundredths of a
millisecond: wall-clock time on a machine that does anything else shows that instead.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from importlib import util
from pathlib import Path
from statistics import median
from time import thread_time_ns

import hotstart

from .common import Target, Times, places, save, say, spread, table
from .common import targets_table as show_targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OURS, THEIRS = "hotstart CacheManager", "Triton FileCacheManager"
INSTALLED = "hotstart CacheManager.over(cache)"
IN_PROCESS, FIRST, OTHERS, ALL = "one process", "fresh, first compile", "fresh, other compiles", "fresh, all compiles"

_KERNELS = 20

_PROGRAM = f"""
import json, os, sys, time
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def add(x, y, o, n, B: tl.constexpr, C: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(o + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m) * C, mask=m)

SIGNATURE = {{"x": "*fp32", "y": "*fp32", "o": "*fp32", "n": "i32", "B": "constexpr", "C": "constexpr"}}
SOURCES = [ASTSource(fn=add, signature=SIGNATURE, constexprs={{"B": 1024, "C": c}}) for c in range({_KERNELS})]

def compile(source):
    return triton.compile(source, target=GPUTarget("cuda", 90, 32))

if __name__ == "__main__":
    missed, times = [], []
    triton.knobs.compilation.listener = lambda **event: missed.append(event["src"]) if not event["cache_hit"] else None
    began = time.thread_time_ns()
    if os.environ.get("INSTALL"):
        import hotstart
        from hotstart.compilers.triton import CacheManager
        triton.knobs.cache.manager_class = CacheManager.over(hotstart.open(memory=0))
    for source in SOURCES:
        compile(source)
        times.append(time.thread_time_ns() - began)
        began = time.thread_time_ns()
    print(json.dumps({{"times": times, "missed": len(missed)}}))
"""


def run(out: Path, *, quick: bool) -> list[Target]:
    found = measure(quick)
    times: dict[str, dict[str, Times]] = found["times"]
    for row, title in times.items():
        table(f"Triton, warm: {row}", ["µs", "p50", "p90", "p99", "max"], [[n, *spread(t)] for n, t in title.items()])
    targets = [
        _target("triton.compile, warm: ours / its own", times, row, ours)
        for row, ours in ((IN_PROCESS, OURS), (OTHERS, OURS), (OTHERS, INSTALLED), (ALL, INSTALLED))
    ]
    show_targets("Triton: what was promised (ratios of medians)", targets)
    summaries = {row: {name: value.summary() for name, value in by.items()} for row, by in times.items()}
    save(
        out,
        "triton",
        {
            "unit": "µs of processor time",
            "setup": found["setup"],
            "times": summaries,
            "targets": [target.record() for target in targets],
        },
    )
    return targets


def _target(what: str, times: dict[str, dict[str, Times]], row: str, ours: str) -> Target:
    where = row if ours == OURS else f"{row}, {ours.removeprefix('hotstart ')}"
    return Target(what, where, median(times[row][ours].ns) / median(times[row][THEIRS].ns), 1)


def measure(quick: bool) -> dict[str, Any]:
    """Times by situation and manager, and what they were measured on."""
    with places() as found:
        place = Path(found["disk"])
        program = place / "kernels.py"
        program.write_text(_PROGRAM)
        say(f"triton: {_KERNELS} kernels in one process, in turns")
        times = {IN_PROCESS: _in_process(place, program, rounds=10 if quick else 100)}
        count = 6 if quick else 25
        say(f"triton: {count} fresh processes each, in turns")
        times.update(_fresh(place, program, count))
        sizes = [path.stat().st_size for path in (place / "ours").rglob("add.*")]
    from triton import __version__

    setup = {"triton": __version__, "kernels": _KERNELS, "bytes of a kernel's files": sum(sizes) // _KERNELS}
    return {"setup": setup, "times": times}


def _in_process(place: Path, program: Path, rounds: int) -> dict[str, Times]:
    from triton import knobs
    from triton.runtime.cache import FileCacheManager

    from hotstart.compilers.triton import CacheManager

    spec = util.spec_from_file_location("benchmarked_kernels", program)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{program} cannot be imported")
    kernels = util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    ours = CacheManager.over(hotstart.Cache(place / "store", memory=0))
    managers = {OURS: (ours, place / "ours"), THEIRS: (FileCacheManager, place / "them")}
    missed: list[object] = []

    def note(**event: Any) -> None:
        if not event["cache_hit"]:
            missed.append(event["src"])

    with knobs.cache.scope(), knobs.compilation.scope():

        def choose(name: str) -> None:
            knobs.cache.manager_class, knobs.cache.dir = managers[name][0], str(managers[name][1])

        for name in managers:
            choose(name)
            for source in kernels.SOURCES:
                kernels.compile(source)
        gc.collect()
        gc.freeze()  # or a full collection of Triton's heap, some milliseconds, hits whoever is timed just then
        times: dict[str, list[int]] = {name: [] for name in managers}
        order = list(managers)
        knobs.compilation.listener = note
        for _ in range(rounds):
            for name in order:
                choose(name)
                for source in kernels.SOURCES:
                    began = thread_time_ns()
                    kernels.compile(source)
                    times[name].append(thread_time_ns() - began)
            order.reverse()
        knobs.compilation.listener = None
        gc.unfreeze()
    if missed:
        raise SystemExit("a kernel that was compiled before was compiled again: nothing warm was measured")
    return {name: Times(found) for name, found in times.items()}


def _fresh(place: Path, program: Path, count: int) -> dict[str, dict[str, Times]]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # Compiled modules are kept, as an installer leaves them, whatever this shell says.
    common = {**inherited, "PYTHONPYCACHEPREFIX": str(place / "compiled"), "TRITON_DEFAULT_FP_FUSION": "1"}
    environments = {
        OURS: {
            **common,
            "TRITON_CACHE_MANAGER": "hotstart.compilers.triton:CacheManager",
            "TRITON_CACHE_DIR": str(place / "ours"),
            "HOTSTART_HOME": str(place / "home"),
        },
        INSTALLED: {
            **common,
            "INSTALL": "1",
            "TRITON_CACHE_DIR": str(place / "hand"),
            "HOTSTART_HOME": str(place / "home"),
        },
        THEIRS: {**common, "TRITON_CACHE_DIR": str(place / "them")},
    }
    for environment in environments.values():  # the store of this part, compiled modules and page cache, for everybody
        _start(program, environment, warm=False)
        for _ in range(2):
            _start(program, environment)
    times: dict[str, dict[str, list[int]]] = {row: {name: [] for name in environments} for row in (FIRST, OTHERS, ALL)}
    order = list(environments)
    for _ in range(count):
        for name in order:
            taken = _start(program, environments[name])
            times[FIRST][name].append(taken[0])
            times[OTHERS][name] += taken[1:]
            times[ALL][name].append(sum(taken))
        order.append(order.pop(0))
    return {row: {name: Times(ns) for name, ns in by.items()} for row, by in times.items()}


def _start(program: Path, environment: dict[str, str], *, warm: bool = True) -> list[int]:
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    if warm and answer["missed"]:
        raise SystemExit(f"{answer['missed']} kernels were compiled: nothing warm was measured")
    return list(answer["times"])
