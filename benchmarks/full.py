"""A store that is full: what the next put costs, by how many entries it holds, and how long opening takes.

Values of 2 kB, so that 100,000 of them fit anywhere; the work of eviction is per
entry, not per byte. The mean is what counts here: one put in many evicts for all.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import hotstart

from .common import OUR_LINES, PEER_LINES, Call, Target, Times, figure, rotate, save_plot, say, spread, table
from .contenders import FILESTREAM, OURS, Contender, kernel_key, on_disk, open_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

VALUE = 2_000

#: Entries held, ours and the peers', by place. Fewer on a disk: where it is mounted with
#: ``discard``, taking away a file that was written back costs milliseconds, whoever does it.
SIZES = {"tmpfs": (1_000, 10_000, 100_000), "disk": (1_000, 10_000)}
_PEER_SIZES = {"tmpfs": (1_000, 10_000), "disk": (1_000,)}
_QUICK_SIZES = (1_000, 10_000)

#: Which peers are also filled, and how many puts are timed. One put of cuda.core's at
#: 10,000 entries takes as long as a thousand of the others'.
_PEERS = {FILESTREAM: 12, "diskcache": 600, "sqlite WAL": 600}

#: A round of eviction serves about 65 puts, so these make ten, after the first few, which
#: take the fill into the index. Together fewer than the smallest store holds: what is
#: evicted is then old everywhere, and has been written back everywhere.
_PUTS, _WARM_UP = 700, 200

#: What is put while measuring was dear to compile: old entries go first with either policy.
_COST = 100.0


class Full:
    """What was measured in one place: by contender, by number of entries held."""

    def __init__(self) -> None:
        self.puts: dict[str, dict[int, Times]] = {}
        self.opens: dict[str, dict[int, Times]] = {}

    def targets(self, place: str) -> list[Target]:
        smallest, largest = min(self.opens[OURS]), max(self.opens[OURS])
        milliseconds = self.opens[OURS][largest].p50 / 1e3
        found = [Target(f"open with {largest:,} entries, ms", place, milliseconds, 5.0)]
        for name, by_size in self.puts.items():
            if name in (f"{OURS}, lru", f"{OURS}, cost"):
                growth = by_size[largest].mean / by_size[smallest].mean
                found.append(Target(f"mean put when full, {largest:,} / {smallest:,}, {name}", place, growth, 1.5))
        return found

    def record(self) -> dict[str, Any]:
        tables = {"put": self.puts, "open": self.opens}
        return {
            "value_bytes": VALUE,
            **{
                what: {name: {str(size): times.summary() for size, times in row.items()} for name, row in rows.items()}
                for what, rows in tables.items()
            },
        }

    def show(self, place: str) -> None:
        for what, rows in (("put when full", self.puts), ("open", self.opens)):
            lines = [
                [f"{name}, {size:,} held", times.mean, *spread(times)]
                for name, row in rows.items()
                for size, times in row.items()
            ]
            table(f"{what}, 2 kB values, {place}", ["µs", "mean", "p50", "p90", "p99", "max"], lines)


def measure(found: dict[str, str], *, quick: bool) -> dict[str, Full]:
    """Filled once, in the fastest place, and copied: cuda.core's fsyncs would take minutes on a disk."""
    first, *others = measured = sorted(found, key=lambda place: place != "tmpfs")[: 1 if quick else 2]
    sizes = {place: _QUICK_SIZES if quick else SIZES[place] for place in measured}
    roots = {place: f"{found[place]}/full" for place in measured}
    _fill(roots[first], sizes[first], _PEER_SIZES[first])
    for place in others:
        say(f"store: copying full stores, {first} to {place}")
        os.mkdir(roots[place], 0o700)
        names = [f"{OURS} {size}" for size in sizes[place]]
        names += [f"{name} {size}" for name in _PEERS for size in _PEER_SIZES[place]]
        # With times, by which eviction goes.
        subprocess.run(["cp", "-a", *(f"{roots[first]}/{name}" for name in names), roots[place]], check=True)
    return {place: _measure(place, roots[place], sizes[place], quick=quick) for place in measured}


def _fill(root: str, sizes: Sequence[int], peer_sizes: Sequence[int]) -> None:
    os.mkdir(root, 0o700)
    rng = random.Random(2)
    for size in sizes:
        say(f"store: filling with {size:,} entries")
        with hotstart.Cache(f"{root}/{OURS} {size}", memory=0) as cache:
            for n in range(size):
                cache.put(kernel_key(n), {"cubin": rng.randbytes(VALUE)}, cost=rng.lognormvariate(0, 1))
        for name in _PEERS if size in peer_sizes else ():
            peer = on_disk()[name](f"{root}/{name} {size}")
            for n in range(size):
                peer.put(peer.key(n), rng.randbytes(VALUE))
            peer.close()


def _measure(place: str, root: str, sizes: Sequence[int], *, quick: bool) -> Full:
    found = Full()
    count = _PUTS // 2 if quick else _PUTS
    for policy in ("lru", "cost"):
        say(f"store: put when full, policy {policy}, {place}")
        found.puts[f"{OURS}, {policy}"] = _ours(root, sizes, policy, count)
        if place == "tmpfs":
            say(f"store: put when full, policy {policy}, everything read before, {place}")
            found.puts[f"{OURS}, {policy}, all read"] = _ours(root, sizes, policy, count // 4, read=True)
    for name, most in _PEERS.items():
        say(f"store: put when full, {name}, {place}")
        found.puts[name] = _theirs(root, _PEER_SIZES[place], name, max(4, most // 3) if quick else most)
    say(f"store: open, large, {place}")
    opener = on_disk()[OURS]
    ours = {str(size): open_call(opener, f"{root}/{OURS} {size}") for size in sizes}
    found.opens[OURS] = {int(size): times for size, times in rotate(ours, 20 if quick else 100, 5).items()}
    opener = on_disk()[FILESTREAM]
    peers = {str(size): open_call(opener, f"{root}/{FILESTREAM} {size}", 1 << 30) for size in _PEER_SIZES[place]}
    found.opens[f"{FILESTREAM}, cap"] = {int(size): times for size, times in rotate(peers, 5, 1).items()}
    return found


def _ours(root: str, sizes: Sequence[int], policy: str, count: int, *, read: bool = False) -> dict[int, Times]:
    """All sizes in turns. Each turn is longer than the puts between two rounds of eviction.

    With ``read`` every entry was read since eviction last looked: the worst case for
    an order that is kept on the files and only looked up when something has to go.
    """
    rng = random.Random(f"{policy} {read}")
    os.sync()  # what the disk has yet to do is done now, and all that is evicted has been written back
    calls = {}
    caches = []
    for size in sizes:
        path = f"{root}/{OURS} {size}"
        with hotstart.Cache(path) as cache:
            held = cache.stats()["bytes"]
        cache = hotstart.Cache(path, max_size=held, policy=policy, memory=0)
        caches.append(cache)
        start = rng.randrange(1 << 30, 1 << 40)
        arguments = [(kernel_key(start + n), rng.randbytes(VALUE)) for n in range(count + _WARM_UP)]
        put = _putter(cache)
        for argument in arguments[:_WARM_UP]:
            put(argument)
        if read:
            _read_everything(cache)
        calls[str(size)] = Call(put, arguments[_WARM_UP:])
    times = {int(size): found for size, found in rotate(calls, count, 100).items()}
    for cache in caches:
        evicted = cache.stats()["evicted"]
        if evicted < count // 2:
            raise SystemExit(f"{evicted} evictions in {count} puts: the store was not full")
        cache.close()
    return times


def _read_everything(cache: hotstart.Cache) -> None:
    """What a read leaves behind, its time on the file, without making 100,000 keys again."""
    for path in Path(str(cache.path), "entries").glob("*/*"):
        os.utime(path)


def _putter(cache: hotstart.Cache) -> Callable[[tuple[hotstart.Key, bytes]], bool]:
    def put(argument: tuple[hotstart.Key, bytes]) -> bool:
        key, value = argument
        return cache.put(key, {"cubin": value}, cost=_COST)

    return put


def _theirs(root: str, sizes: Sequence[int], name: str, count: int) -> dict[int, Times]:
    rng = random.Random(name)
    value = rng.randbytes(VALUE)
    calls = {}
    peers: list[Contender] = []
    for size in sizes:
        peer = on_disk()[name](f"{root}/{name} {size}", size * VALUE)
        peers.append(peer)
        pairs = [(peer.key(size + n), value) for n in range(count + 2)]
        for pair in pairs[:2]:
            peer.put(*pair)
        calls[str(size)] = peer.put_call(pairs[2:])
    times = {int(size): found for size, found in rotate(calls, count, min(count, 100)).items()}
    for peer in peers:
        peer.close()
    return times


def plot(out: Path, filled: dict[str, Full]) -> None:
    drawing, axes = figure(1, len(filled), 4.6 * len(filled), 3.4)
    for column, (place, found) in enumerate(filled.items()):
        axis = axes[0][column]
        ours, peers = iter(OUR_LINES), iter(PEER_LINES)
        for name, by_size in found.puts.items():
            if name.endswith("all read"):
                continue  # in the table; its mean depends on how many puts one divides it by
            colour = next(ours if name.startswith(OURS) else peers)
            means = [times.mean for times in by_size.values()]
            axis.plot(list(by_size), means, marker="o", label=name, color=colour, linewidth=2)
        axis.set(xscale="log", yscale="log", xlabel="entries held", ylabel="µs, mean")
        axis.set_title(f"put when full, 2 kB values, {place}", loc="left", fontsize=9)
        axis.grid(axis="y", alpha=0.3)
    axes[0][0].legend(frameon=False, fontsize=8)
    save_plot(out, "full", drawing)
