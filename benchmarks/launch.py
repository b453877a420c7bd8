"""``hotstart run``: what it adds to the start of a command, and how fast it gives back what was wiped.

Start-up: whole processes that take turns. Restore: the files of 250 units, 200 MB, once of random
bytes, which are stored as they are, and once of text, which is stored as zstd; beside ``cp -r`` of the
same files on the same disk.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from statistics import median
from time import perf_counter, perf_counter_ns

import hotstart

from .common import Target, Times, bars, figure, places, save, save_plot, say, spread, table
from .common import targets_table as show_targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

NOTHING, MODULES = "python -c pass", "python: import argparse, subprocess, sqlite3"
EMPTY, FULL = "hotstart run true", "hotstart run true (10,000 entries, 10,000 files)"

#: As an installed script does it.
SCRIPT = "import sys; from hotstart.cli.main import main; sys.exit(main())"

_ENTRIES, _FILES, _IN_A_UNIT = 10_000, 10_000, 8
_RESTORED_UNITS, _RESTORED_SIZE = 250, 100_000

# Only the restoring: what happens between the start of the command line and the start of the child.
_RESTORE = """
import sys, time
from hotstart.config import load
from hotstart.compilers.frameworks import FRAMEWORKS
from hotstart.launch.session import Session
from hotstart.launch.restore import bring_back
from hotstart.launch.environment import directories
home = sys.argv[1]
began = time.perf_counter()
session = Session(load(), home, directories(home), FRAMEWORKS, "bench")
session.begin()
bring_back(session, catalogue=False)
session.end()
print(time.perf_counter() - began, len(session.events))
"""


def run(out: Path, *, quick: bool) -> list[Target]:
    with places() as found:
        times = _startup(found["disk"], 20 if quick else 60)
        restored = {
            kind: _restoring(f"{found['disk']}/{kind}", kind, 3 if quick else 7) for kind in ("as they are", "zstd")
        }
    targets = [
        Target(f"{EMPTY} / {MODULES}", "start", _ratio(times[EMPTY], times[MODULES]), 1.3),
        Target(f"{FULL} / {MODULES}", "start", _ratio(times[FULL], times[MODULES]), 1.6),
        Target(
            "restore of uncompressed units / cp -r",
            "disk",
            restored["as they are"]["restore s"] / restored["as they are"]["cp -r s"],
            round(1 / 0.7, 3),
        ),
    ]
    base = times[NOTHING].p50
    rows = [
        [name, *spread(found_), found_.p50 / times[MODULES].p50, (found_.p50 - base) / 1e3]
        for name, found_ in times.items()
    ]
    table("start of a command", ["µs", "p50", "p90", "p99", "max", "× modules", "ms above pass"], rows)
    header = ["2,000 files, 200 MB, stored", "cp -r s", "restore s", "whole run s", "store MB", "speed against cp -r"]
    table(
        "restore",
        header,
        [
            [
                kind,
                row["cp -r s"],
                row["restore s"],
                row["whole run s"],
                row["store MB"],
                row["cp -r s"] / row["restore s"],
            ]
            for kind, row in restored.items()
        ],
    )
    show_targets("launch: what was promised (ratios of medians)", targets)
    save(
        out,
        "launch",
        {
            "unit": "µs",
            "programs": {name: found_.summary() for name, found_ in times.items()},
            "restore": restored,
            "targets": [target.record() for target in targets],
        },
    )
    drawing, axes = figure(1, 1, 6.4, 2.0)
    p50, p90 = ({name: found_.at(share) / 1e3 for name, found_ in times.items()} for share in (0.5, 0.9))
    bars(axes[0][0], "start of a command, ms (p50 / p90)", p50, p90)
    save_plot(out, "launch", drawing)
    return targets


# -- start-up --------------------------------------------------------------------


def _startup(place: str, count: int) -> dict[str, Times]:
    empty, full = f"{place}/empty", f"{place}/full"
    _fill(full)
    commands = {
        NOTHING: ([sys.executable, "-c", "pass"], _environment(empty)),
        MODULES: ([sys.executable, "-c", "import argparse, subprocess, sqlite3"], _environment(empty)),
        EMPTY: ([sys.executable, "-c", SCRIPT, "run", "true"], _environment(empty)),
        FULL: ([sys.executable, "-c", SCRIPT, "run", "true"], _environment(full)),
    }
    for _ in range(3):  # compiled modules, page cache, and the first look at everything
        for command, environment in commands.values():
            subprocess.run(command, env=environment, check=True)
    say(f"launch: {count} processes each of {len(commands)} commands, in turns")
    times: dict[str, list[int]] = {name: [] for name in commands}
    order = list(commands)
    for _ in range(count):
        for name in order:
            times[name].append(_start(*commands[name]))
        order.append(order.pop(0))
    return {name: Times(found) for name, found in times.items()}


def _start(command: list[str], environment: dict[str, str]) -> int:
    begin = perf_counter_ns()
    pid = os.posix_spawn(command[0], command, environment)
    _, status = os.waitpid(pid, 0)
    elapsed = perf_counter_ns() - begin
    if status:
        raise SystemExit(f"a measured command failed: {command!r}")
    return elapsed


def _fill(home: str) -> None:
    say(f"launch: {_ENTRIES} entries and {_FILES} files")
    with hotstart.Cache(f"{home}/store") as cache:
        for number in range(_ENTRIES):
            cache.put(hotstart.Key("nvrtc", name="saxpy", source=str(number)), {"cubin": bytes(2000)}, cost=1.0)
    _units(f"{home}/frameworks/triton", _FILES // _IN_A_UNIT, lambda _: b"text " * 100)
    os.chmod(f"{home}/frameworks", 0o700)
    subprocess.run([sys.executable, "-c", SCRIPT, "run", "true"], env=_environment(home), check=True)


def _units(place: str, count: int, content: Any) -> None:
    """Directories as Triton leaves them."""
    for number in range(count):
        unit = f"{place}/{number:032X}"
        os.makedirs(unit)
        for which in range(_IN_A_UNIT):
            with open(f"{unit}/kernel.{which}", "wb") as file:
                file.write(content(number))


def _environment(home: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "HOTSTART_HOME": home, "PYTHONPYCACHEPREFIX": f"{os.path.dirname(home)}/compiled"}


# -- restore -----------------------------------------------------------------------


def _restoring(home: str, kind: str, rounds: int) -> dict[str, float]:
    chance = random.Random(1)
    words = [f"%r{number}, %f{number};\n\tfma.rn.f32 " for number in range(2000)]

    def text(_: int) -> bytes:
        return "".join(chance.choices(words, k=_RESTORED_SIZE // 20)).encode()[:_RESTORED_SIZE].ljust(_RESTORED_SIZE)

    root = f"{home}/frameworks"
    os.makedirs(home)
    os.chmod(home, 0o700)
    _units(
        f"{root}/triton",
        _RESTORED_UNITS,
        text if kind == "zstd" else lambda _: chance.randbytes(_RESTORED_SIZE),
    )
    os.chmod(root, 0o700)
    environment = _environment(home)
    subprocess.run([sys.executable, "-c", SCRIPT, "run", "true"], env=environment, check=True)
    held = sum(os.stat(f"{where}/{name}").st_size for where, _, names in os.walk(f"{home}/store") for name in names)
    kept = f"{home}/kept"
    shutil.copytree(root, kept)
    copies, restores, wholes = [], [], []
    for _ in range(rounds):
        began = perf_counter()
        subprocess.run(["cp", "-r", kept, f"{home}/copy"], check=True)
        copies.append(perf_counter() - began)
        shutil.rmtree(f"{home}/copy")
        shutil.rmtree(f"{root}/triton")
        command = [sys.executable, "-c", _RESTORE, home]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        seconds, units = done.stdout.split()
        if int(units) != _RESTORED_UNITS:
            raise SystemExit(f"restored {units} units: {done.stderr}")
        restores.append(float(seconds))
        shutil.rmtree(f"{root}/triton")
        began = perf_counter()
        subprocess.run([sys.executable, "-c", SCRIPT, "run", "true"], env=environment, check=True)
        wholes.append(perf_counter() - began)
    say(f"launch: restored {rounds} times, {kind}")
    shutil.rmtree(home)
    return {
        "cp -r s": round(median(copies), 4),
        "restore s": round(median(restores), 4),
        "whole run s": round(median(wholes), 4),
        "store MB": round(held / 1e6, 1),
    }


def _ratio(these: Times, those: Times) -> float:
    return median(these.ns) / median(those.ns)
