"""What hotstart adds to the start of a process, in fresh processes that take turns."""

from __future__ import annotations

import os
import sys
from statistics import median
from time import perf_counter_ns

import hotstart

from .common import Target, Times, bars, figure, places, save, save_plot, say, spread, table
from .common import targets_table as show_targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

NOTHING, IMPORT = "python -c pass", "import hotstart"
MODULES, FIRST_HIT = "import sqlite3, json, xxhash, blake3", "hotstart: open, first hit"
CONFIGURED = "hotstart: hotstart.open(), first hit"

_ENTRIES = 100

# Ten fields are hashed and 50 kB read and checked: all that a process does before its first kernel is there.
_HIT = """
import hotstart
cache = {opened}
entry = cache.get(hotstart.Key("nvrtc", name="saxpy", source={source!r}, arch="sm_90", std="c++17", options=[],
                               macros={{}}, max_registers=64, target="cubin", name_expressions=(), toolchain="1"))
if len(entry["cubin"]) != 50_000:
    raise SystemExit("not a hit")
"""


def run(out: Path, *, quick: bool) -> list[Target]:
    count = 30 if quick else 100
    with places() as found:
        home = next(reversed(found.values()))  # tmpfs where there is one: the start of Python itself is no disk test
        _fill(f"{home}/store")
        programs = {
            NOTHING: "pass",
            IMPORT: "import hotstart",
            MODULES: MODULES,
            FIRST_HIT: _HIT.format(opened=f"hotstart.Cache({f'{home}/store'!r})", source=_source(0)),
            CONFIGURED: _HIT.format(opened="hotstart.open()", source=_source(0)),
        }
        say(f"startup: {count} processes each of {len(programs)} programs, in turns")
        times = _rotate(programs, count, _environment(home))
    targets = [
        Target(f"{name} / {against}", "start", _ratio(times[name], times[against]), limit)
        for name, against, limit in (
            (IMPORT, NOTHING, 1.3),
            (FIRST_HIT, MODULES, 1.5),
            (CONFIGURED, MODULES, 1.5),
        )
    ]
    base = times[NOTHING].p50
    rows = [[name, *spread(found), found.p50 / base, (found.p50 - base) / 1e3] for name, found in times.items()]
    table("start of a process", ["µs", "p50", "p90", "p99", "max", "× pass", "ms above"], rows)
    show_targets("startup: what was promised (ratios of medians)", targets)
    summaries = {name: found.summary() for name, found in times.items()}
    save(out, "startup", {"unit": "µs", "programs": summaries, "targets": [target.record() for target in targets]})
    drawing, axes = figure(1, 1, 6.4, 2.2)
    bars(axes[0][0], "start of a process, ms (p50 / p90)", *_milliseconds(times))
    save_plot(out, "startup", drawing)
    return targets


def _source(number: int) -> str:
    return f"__global__ void k{number}() {{}}"


def _fill(path: str) -> None:
    with hotstart.Cache(path) as cache:
        for n in range(_ENTRIES):
            key = hotstart.Key(
                "nvrtc",
                name="saxpy",
                source=_source(n),
                arch="sm_90",
                std="c++17",
                options=[],
                macros={},
                max_registers=64,
                target="cubin",
                name_expressions=(),
                toolchain="1",
            )
            cache.put(key, {"cubin": bytes(50_000)}, cost=1.0)


def _environment(home: str) -> dict[str, str]:
    """For all programs: compiled modules are kept, as an installer leaves them, whatever this shell says."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "HOTSTART_HOME": home, "PYTHONPYCACHEPREFIX": f"{home}/compiled"}


def _rotate(programs: dict[str, str], count: int, environment: dict[str, str]) -> dict[str, Times]:
    times: dict[str, list[int]] = {name: [] for name in programs}
    order = list(programs)
    for program in programs.values():  # compiled modules and page cache, for everybody
        _start(program, environment)
    for _ in range(count):
        for name in order:
            times[name].append(_start(programs[name], environment))
        order.append(order.pop(0))
    return {name: Times(found) for name, found in times.items()}


def _start(program: str, environment: dict[str, str]) -> int:
    """Nanoseconds from spawn to exit. ``posix_spawn``, because ``subprocess`` adds a millisecond of its own."""
    begin = perf_counter_ns()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", program], environment)
    _, status = os.waitpid(pid, 0)
    elapsed = perf_counter_ns() - begin
    if status:
        raise SystemExit(f"a measured program failed: {program!r}")
    return elapsed


def _ratio(these: Times, those: Times) -> float:
    return median(these.ns) / median(those.ns)


def _milliseconds(times: dict[str, Times]) -> tuple[dict[str, float], dict[str, float]]:
    p50, p90 = ({name: found.at(share) / 1e3 for name, found in times.items()} for share in (0.5, 0.9))
    return p50, p90
