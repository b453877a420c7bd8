"""One process, 1,000 entries of 50 kB, warm page cache: what each operation costs, ours beside the peers."""

from __future__ import annotations

import os
import random
from time import perf_counter_ns

import hotstart

from . import full
from .common import Call, Target, Times, bars, figure, filesystem, places, rotate, save, save_plot, say, spread, table
from .common import targets_table as show_targets
from .contenders import (
    FILESTREAM,
    INMEMORY,
    OURS,
    PLAIN,
    SOURCE,
    Contender,
    kernel_key,
    on_disk,
    open_call,
    open_hotstart,
    open_inmemory,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    Results = dict[str, dict[str, Times]]

ENTRIES, QUICK_ENTRIES = 1000, 500
VALUE = 50_000

MEMORY_HIT, MEMORY_IDLE = "memory hit", "memory hit after 25 ms"
OURS_MEMORY = "hotstart, memory tier"

#: Longer than the memory tier waits before it tells the disk of a use again.
_IDLE_NS = 25_000_000


def run(out: Path, *, quick: bool) -> list[Target]:
    operations: dict[str, Results] = {}
    filled: dict[str, full.Full] = {}
    with places() as found:
        systems = {place: filesystem(root) for place, root in found.items()}
        _touch_memory(found.get("tmpfs", found["disk"]), 256 if quick else 1024)
        entries = QUICK_ENTRIES if quick else ENTRIES
        for place, root in found.items():
            operations[place] = _operations(place, f"{root}/small", entries, rounds=3 if quick else 8)
        filled = full.measure(found, quick=quick)
    keys = _keys(2000 if quick else 10_000)
    targets = _targets(operations, filled, keys)
    _show(operations, filled, keys, targets)
    save(
        out,
        "store",
        {
            "setup": {"entries": entries, "value_bytes": VALUE, "file_systems": systems, "unit": "µs"},
            "operations": {
                place: {op: {name: times.summary() for name, times in row.items()} for op, row in results.items()}
                for place, results in operations.items()
            },
            "key": {op: {name: times.summary() for name, times in row.items()} for op, row in keys.items()},
            "put_when_full": {place: found.record() for place, found in filled.items()},
            "targets": [target.record() for target in targets],
        },
    )
    _plot(out, operations, systems)
    full.plot(out, filled)
    return targets


def _touch_memory(root: str, megabytes: int) -> None:
    """Write as much as the run will, and drop it.

    On a virtual machine the first use of a page of memory is paid to the host, and
    that is more than a put: whoever runs into fresh memory would look twice as slow.
    """
    block = b"\1" * (1 << 20)
    with open(f"{root}/touch", "wb") as file:
        file.writelines(block for _ in range(megabytes))
    os.unlink(f"{root}/touch")


def _operations(place: str, root: str, entries: int, *, rounds: int) -> Results:
    os.mkdir(root, 0o700)
    rng = random.Random(1)
    # They begin like cubins, so that whatever looks at the first bytes of an artifact does.
    values = [b"\x7fELF" + rng.randbytes(VALUE - 4) for _ in range(entries)]
    contenders = {name: opener(f"{root}/{name}") for name, opener in on_disk().items()}
    results: Results = {}

    say(f"store: put, {place}")
    # Ours always has a cap. cuda.core is faster without one, so the promise is about that; this row is like for like.
    capped = on_disk()[FILESTREAM](f"{root}/capped", 10 << 30)
    calls = {
        name: each.put_call([(each.key(n), values[n]) for n in range(entries)])
        for name, each in [*contenders.items(), (f"{FILESTREAM}, cap", capped)]
    }
    results["put"] = rotate(calls, entries, 20)
    capped.close()
    for name, each in contenders.items():
        for n in range(entries):
            if each.get(each.key(n)) != values[n]:
                raise SystemExit(f"{name} on {place} does not return what was put: nothing to compare")

    say(f"store: hit and miss, {place}")
    order = rng.sample(range(entries), entries)
    hits = {name: Call(each.get, [each.key(n) for n in order]) for name, each in contenders.items()}
    results["hit"] = rotate(hits, rounds * entries, 50)
    # Ours with its memory tier on: a miss has to look there as well.
    tiered = open_hotstart(f"{root}/{OURS}", memory="128MiB")
    missing = {name: Call(each.get, [each.key(entries + n) for n in order]) for name, each in contenders.items()}
    missing[OURS] = Call(tiered.get, missing[OURS].args)
    results["miss"] = rotate(missing, rounds * entries, 50)

    say(f"store: memory hit, {place}")
    results |= _memory(tiered, values, order, rounds)
    tiered.close()
    for each in contenders.values():
        each.close()

    say(f"store: open, {place}")
    openers = {
        name: open_call(opener, f"{root}/{name}") for name, opener in on_disk().items() if not name.startswith(PLAIN)
    }
    # With a cap, which is how a cache is used; it then counts what it holds.
    openers[f"{FILESTREAM}, cap"] = open_call(on_disk()[FILESTREAM], f"{root}/{FILESTREAM}", 1 << 30)
    results[f"open, {entries:,} entries"] = rotate(openers, 10 * rounds, 5)
    return results


def _memory(tiered: Contender, values: list[bytes], order: list[int], rounds: int) -> Results:
    entries = len(values)
    inmemory = open_inmemory()
    for n, value in enumerate(values):
        inmemory.put(inmemory.key(n), value)
        tiered.get(tiered.key(n))
    calls = {
        OURS_MEMORY: Call(tiered.get, [tiered.key(n) for n in order]),
        INMEMORY: Call(inmemory.get, [inmemory.key(n) for n in order]),
    }
    hot = rotate(calls, 10 * rounds * entries, 10 * entries)
    # Every entry now rests for longer than the memory tier keeps a use to itself.
    times: dict[str, Times] = {name: Times() for name in calls}
    for _ in range(rounds):
        _wait(_IDLE_NS)
        for name, found in rotate(calls, entries, entries).items():
            times[name].ns += found.ns
    return {MEMORY_HIT: hot, MEMORY_IDLE: times}


def _wait(ns: int) -> None:
    """Awake: a core that slept is slow for a while, and that is not what is measured."""
    until = perf_counter_ns() + ns
    while perf_counter_ns() < until:
        pass


def _keys(count: int) -> Results:
    from cuda.core import ProgramOptions
    from cuda.core.utils import make_program_cache_key

    say("store: key of ten fields")
    options = ProgramOptions(
        name="saxpy",
        arch="sm_90",
        std="c++17",
        use_fast_math=True,
        extra_device_vectorization=True,
        define_macro=[("BLOCK", "128"), ("T", "float")],
        max_register_count=64,
    )

    def theirs(source: str) -> bytes:
        return make_program_cache_key(  # type: ignore[no-any-return]
            code=source, code_type="c++", options=options, target_type="cubin", name_expressions=("saxpy<float>",)
        )

    def ours(source: str) -> hotstart.Key:
        return kernel_key(0, source)

    results: Results = {}
    for label, source in (("2 kB of source", SOURCE), ("32 kB of source", SOURCE * 16)):
        sources = [f"{source}// {n}" for n in range(500)]
        calls = {OURS: Call(ours, sources), "cuda.core": Call(theirs, sources)}
        results[f"key, {label}"] = rotate(calls, count, 200)
    return results


def _targets(operations: dict[str, Results], filled: dict[str, full.Full], keys: Results) -> list[Target]:
    def ratio(results: Results, operation: str, ours: str, theirs: str) -> float:
        return results[operation][ours].p50 / results[operation][theirs].p50

    targets = []
    for place, results in operations.items():
        targets += [
            Target("hit / plain-file read", place, ratio(results, "hit", OURS, PLAIN), 1.5),
            Target("hit / cuda.core FileStream", place, ratio(results, "hit", OURS, FILESTREAM), 0.6),
            Target("miss / plain-file miss", place, ratio(results, "miss", OURS, PLAIN), 1.5),
            Target("memory hit / cuda.core InMemory", place, ratio(results, MEMORY_HIT, OURS_MEMORY, INMEMORY), 1.3),
            Target("put / cuda.core FileStream", place, ratio(results, "put", OURS, FILESTREAM), 0.7),
        ]
    for place, found in filled.items():
        targets += found.targets(place)
    name = next(iter(keys))
    targets.append(Target("key of ten fields / cuda.core", "–", ratio(keys, name, OURS, "cuda.core"), 0.6))
    return targets


def _show(operations: dict[str, Results], filled: dict[str, full.Full], keys: Results, targets: list[Target]) -> None:
    header = ["µs", "p50", "p90", "p99", "max", "× hotstart"]
    for place, results in [*operations.items(), ("no disk", keys)]:
        for operation, row in results.items():
            base = row[next(iter(row))].p50
            rows = [[name, *spread(times), times.p50 / base] for name, times in row.items()]
            table(f"{operation}, {place}", header, rows)
    for place, found in filled.items():
        found.show(place)
    show_targets("store: what was promised (ratios of p50 unless said)", targets)


def _plot(out: Path, operations: dict[str, Results], systems: dict[str, str]) -> None:
    shown = ("hit", "miss", "put", MEMORY_HIT)
    lines = [1 + len(next(iter(operations.values()))[operation]) for operation in shown]
    drawing, axes = figure(len(shown), len(operations), 5.2 * len(operations), 0.28 * sum(lines), lines)
    for column, (place, results) in enumerate(operations.items()):
        for line, operation in enumerate(shown):
            row = dict(sorted(results[operation].items(), key=lambda item: item[1].p50))
            where = f"{place} ({systems[place]})" if systems[place] != place else place
            title = f"{operation}, {where}"
            p50, p99 = ({name: times.at(share) for name, times in row.items()} for share in (0.5, 0.99))
            bars(axes[line][column], title, p50, p99, log=True)
    for column in range(len(operations)):
        axes[-1][column].set_xlabel("µs, p50 / p99")
    drawing.suptitle("entries of 50 kB, warm, one process", x=0.01, ha="left", fontsize=10)
    save_plot(out, "store", drawing)
