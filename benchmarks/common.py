"""What every part shares: timing, places to run in, machine facts, tables, JSON, plots."""

from __future__ import annotations

import gc
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from statistics import fmean
from time import monotonic, perf_counter_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

#: Whatever takes part in a comparison; absent ones are left out of the facts.
PACKAGES = ("hotstart", "blake3", "xxhash", "cuda-core", "cuda-bindings", "diskcache", "lmdb", "matplotlib")

_OURS, _PEER = "#d1495b", "#8d99ae"
#: Lines need telling apart where bars have their names beside them.
OUR_LINES, PEER_LINES = ("#d1495b", "#e8a598"), ("#2b2d42", "#6c7a96", "#adb5c7")


_began = monotonic()


def say(text: str) -> None:
    """Progress, on stderr: stdout holds only the tables."""
    print(f"{monotonic() - _began:5.0f} s  {text}", file=sys.stderr, flush=True)


# -- timing ---------------------------------------------------------------------


class Call:
    """One contender's side of an operation: what is called, and with which arguments in turn.

    ``args`` are made before the clock starts, so that a key or a payload is not part of the price.
    """

    __slots__ = ("args", "call")

    def __init__(self, call: Callable[[Any], object], args: Sequence[Any]) -> None:
        self.call = call
        self.args = args


class Times:
    """Nanoseconds of single calls, summed up in microseconds."""

    __slots__ = ("ns",)

    def __init__(self, ns: Iterable[int] = ()) -> None:
        self.ns = list(ns)

    def at(self, share: float) -> float:
        """The percentile, as one of the values measured: nothing is interpolated into a tail of few samples."""
        ordered = sorted(self.ns)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e3

    @property
    def p50(self) -> float:
        return self.at(0.5)

    @property
    def mean(self) -> float:
        return fmean(self.ns) / 1e3

    def summary(self) -> dict[str, float]:
        marks = {"p50": self.at(0.5), "p90": self.at(0.9), "p99": self.at(0.99), "max": self.at(1), "mean": self.mean}
        return {"n": len(self.ns), **{name: round(value, 3) for name, value in marks.items()}}


def rotate(calls: Mapping[str, Call], count: int, chunk: int) -> dict[str, Times]:
    """Time ``count`` calls of each contender, ``chunk`` at a time, taking turns.

    Turns rather than one after another: what else runs on the machine, and what the
    kernel writes back, then hits all of them alike. The one that begins a round
    changes, so that nobody always follows the same neighbour.
    """
    overhead = _overhead()
    times: dict[str, list[int]] = {name: [] for name in calls}
    order = list(calls)
    gc.collect()
    for start in range(0, count, chunk):
        for name in order:
            call, args, add = calls[name].call, calls[name].args, times[name].append
            for n in range(start, min(start + chunk, count)):
                argument = args[n % len(args)]
                begin = perf_counter_ns()
                call(argument)
                add(perf_counter_ns() - begin - overhead)
        order.append(order.pop(0))
    return {name: Times(found) for name, found in times.items()}


def _overhead() -> int:
    """What timing an empty call costs. Subtracted, or it would draw ratios of microseconds towards one."""

    def nothing(_: object) -> None:
        pass

    found = []
    for _ in range(2000):
        begin = perf_counter_ns()
        nothing(None)
        found.append(perf_counter_ns() - begin)
    return sorted(found)[len(found) // 2]


# -- where ------------------------------------------------------------------------


@contextmanager
def places() -> Iterator[dict[str, str]]:
    """Empty private directories, ``disk`` and ``tmpfs`` (where there is one with room); removed afterwards."""
    found = {}
    temporary = tempfile.gettempdir()
    found["disk"] = temporary if filesystem(temporary) != "tmpfs" else str(Path.cwd())
    if filesystem("/dev/shm") == "tmpfs" and shutil.disk_usage("/dev/shm").free > 2 << 30:
        found["tmpfs"] = "/dev/shm"
    else:
        say("no tmpfs with 2 GiB free: measured on the disk alone")
    made = {name: tempfile.mkdtemp(prefix="hotstart-bench-", dir=parent) for name, parent in found.items()}
    try:
        yield made
    finally:
        # Not shutil.rmtree: a quarter of a million files.
        subprocess.run(["rm", "-rf", *made.values()], check=False)


def filesystem(path: str) -> str:
    """The type of the file system that holds ``path``; empty where that cannot be found out."""
    best, kind = "", ""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return ""
    real = os.path.realpath(path)
    for line in lines:
        _, mount, found, *_ = line.split()
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def machine() -> dict[str, Any]:
    """What the numbers depend on. No host, user or path: results are committed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "arch": platform.machine(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": versions,
    }


# -- what is shown and kept ---------------------------------------------------------


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: the first column to the left, numbers to the right."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(header))]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        print(
            "  ".join(
                text.ljust(w) if n == 0 else text.rjust(w) for n, (text, w) in enumerate(zip(row, widths, strict=True))
            )
        )
        if number == 0:
            print("  ".join("─" * width for width in widths))
    sys.stdout.flush()


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def spread(times: Times) -> list[float]:
    return [times.at(0.5), times.at(0.9), times.at(0.99), times.at(1)]


class Target:
    """A number that was promised, and what was measured."""

    __slots__ = ("limit", "measured", "what", "where")

    def __init__(self, what: str, where: str, measured: float, limit: float) -> None:
        self.what, self.where, self.measured, self.limit = what, where, measured, limit

    @property
    def kept(self) -> bool:
        return self.measured <= self.limit

    def record(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "where": self.where,
            "measured": round(self.measured, 4),
            "limit": self.limit,
            "kept": self.kept,
        }


def targets_table(title: str, targets: Iterable[Target]) -> None:
    rows = [[t.what, t.where, t.measured, t.limit, "pass" if t.kept else "MISSED"] for t in targets]
    table(title, ["target", "on", "measured", "at most", ""], rows)


def save(out: Path, part: str, data: Mapping[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine(), **data}, indent=1, ensure_ascii=False)
    (out / f"{part}.json").write_text(text + "\n")


def save_plot(out: Path, name: str, figure: Any) -> None:
    """As SVG and PNG, without the date: equal numbers give equal files."""
    import matplotlib as mpl

    out.mkdir(parents=True, exist_ok=True)
    mpl.rcParams["svg.hashsalt"] = "hotstart"
    figure.savefig(out / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
    figure.savefig(out / f"{name}.png", bbox_inches="tight", dpi=130)


def figure(
    rows: int, columns: int, width: float, height: float, ratios: Sequence[float] | None = None
) -> tuple[Any, Any]:
    """An empty figure with axes in a grid (always two-dimensional), in the one style of these plots."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    mpl.rcParams.update(
        {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titleweight": "bold"}
    )
    drawing, axes = pyplot.subplots(
        rows, columns, figsize=(width, height), squeeze=False, layout="constrained", height_ratios=ratios
    )
    return drawing, axes


def bars(
    axes: Any, title: str, values: Mapping[str, float], tails: Mapping[str, float] | None = None, *, log: bool = False
) -> None:
    """Horizontal bars in the order given, ours in colour; ``tails`` draws a thin line up to a second value."""
    names = list(values)
    colours = [_OURS if "hotstart" in name else _PEER for name in names]
    axes.barh(names, list(values.values()), color=colours, height=0.65)
    for name, value in values.items():
        end, text = value, _short(value)
        if tails:
            end, text = tails[name], f"{text} / {_short(tails[name])}"
            axes.plot([value, end], [name, name], color="#444444", linewidth=1)
        axes.annotate(text, (end, name), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    if log:
        axes.set_xscale("log")
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.tick_params(left=False)
    axes.set_title(title, loc="left", fontsize=9)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
