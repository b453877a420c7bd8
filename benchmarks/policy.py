"""What eviction keeps: ``policy="cost"`` and ``"lru"`` of the real cache on reproducible traces.

The cache is driven through ``get`` and ``put`` on tmpfs, with its memory tier off,
with real payloads of the traced sizes. Only what hotstart does not have is
simulated: the clairvoyant, the bound and chance.
"""

from __future__ import annotations

import random
from statistics import fmean

import hotstart

from .common import Target, bars, figure, places, save, save_plot, say, table
from .common import targets_table as show_targets
from .workload import Outcome, Trace, at_random, bound, clairvoyant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    #: Outcomes by policy, one for each seed.
    Outcomes = dict[str, list[Outcome]]

_LRU, _COST, _RANDOM, _BOUND = 'hotstart "lru"', 'hotstart "cost"', "random", "bound no policy can reach"
_BELADY, _BELADY_COST = "clairvoyant, for hits", "clairvoyant, for seconds"

DRIFT = "drifting, cache 20 % of the footprint"
FITS = "working set fits"
FITS_DRIFT = "working set fits and drifts"

_SHARE = 0.2


def run(out: Path, *, quick: bool) -> list[Target]:
    seeds = range(1) if quick else range(3)
    length = 10_000 if quick else 20_000
    results: dict[str, Outcomes] = {DRIFT: {}, FITS: {}, FITS_DRIFT: {}}
    with places() as found:
        root = found.get("tmpfs", found["disk"])
        for seed in seeds:
            say(f"policy: seed {seed}")
            trace = Trace(seed, requests=length, live=length // 20, renew_every=20)
            _add(results[DRIFT], _run(f"{root}/drift{seed}", trace, lambda sizes: int(sum(sizes) * _SHARE), all=True))
            # Every kernel has its place; the only misses are first requests, a fortieth of all.
            still = Trace(seed, requests=length, live=length // 40)
            _add(results[FITS], _run(f"{root}/fits{seed}", still, sum))
            # What is live takes 80 % of the cache, and as much again is exchanged in the course of the trace:
            # entries nobody will want again have to make way for those in use.
            live = length // 80
            moving = Trace(seed, requests=length, live=live, renew_every=length // live)
            _add(results[FITS_DRIFT], _run(f"{root}/moves{seed}", moving, lambda sizes: int(sum(sizes) / 2 / 0.8)))
    targets = [
        Target(
            "misses, %, " + name, policy, 100 * (1 - fmean(outcome.hit_rate for outcome in results[name][policy])), 5.0
        )
        for name in (FITS, FITS_DRIFT)
        for policy in (_LRU, _COST)
    ]
    _show(results, targets)
    save(
        out,
        "policy",
        {
            "requests": length,
            "seeds": list(seeds),
            "traces": {
                name: {policy: [_record(outcome) for outcome in each] for policy, each in outcomes.items()}
                for name, outcomes in results.items()
            },
            "targets": [target.record() for target in targets],
        },
    )
    _plot(out, results[DRIFT])
    return targets


def _run(root: str, trace: Trace, cap_of: Callable[[list[int]], int], *, all: bool = False) -> dict[str, Outcome]:
    payload = random.Random(0).randbytes(max(trace.sizes))
    sizes = _sizes_on_disk(f"{root}-all", trace, payload)
    cap = cap_of(sizes)
    outcomes = {
        name: _drive(f"{root}-{policy}", trace, payload, cap, policy)
        for name, policy in ((_COST, "cost"), (_LRU, "lru"))
    }
    if all:
        outcomes[_RANDOM] = at_random(trace, sizes, cap, seed=0)
        outcomes[_BELADY] = clairvoyant(trace, sizes, cap, by_cost=False)
        outcomes[_BELADY_COST] = clairvoyant(trace, sizes, cap, by_cost=True)
    outcomes[_BOUND] = bound(trace, sizes, cap)
    return outcomes


def _key(kernel: int) -> hotstart.Key:
    return hotstart.Key("trace", kernel=kernel)


def _sizes_on_disk(path: str, trace: Trace, payload: bytes) -> list[int]:
    """What each kernel takes in a store, so that simulated caches hold exactly as much as real ones."""
    sizes = []
    held = 0
    with hotstart.Cache(path, memory=0, max_size="1TiB") as cache:
        for kernel, size in enumerate(trace.sizes):
            cache.put(_key(kernel), {"cubin": payload[:size]}, cost=trace.costs[kernel])
            now = cache.stats()["bytes"]
            sizes.append(now - held)
            held = now
        cache.clear()
    return sizes


def _drive(path: str, trace: Trace, payload: bytes, cap: int, policy: str) -> Outcome:
    outcome = Outcome(trace)
    keys = [_key(kernel) for kernel in range(len(trace.sizes))]
    with hotstart.Cache(path, memory=0, max_size=cap, policy=policy) as cache:
        for kernel in trace.requests:
            if cache.get(keys[kernel]) is not None:
                outcome.hits += 1
                outcome.saved += trace.costs[kernel]
            else:
                cache.put(keys[kernel], {"cubin": payload[: trace.sizes[kernel]]}, cost=trace.costs[kernel])
        cache.clear()
    return outcome


def _add(results: Outcomes, outcomes: dict[str, Outcome]) -> None:
    for name, outcome in outcomes.items():
        results.setdefault(name, []).append(outcome)


def _record(outcome: Outcome) -> dict[str, float]:
    return {
        "hit_rate": round(outcome.hit_rate, 4),
        "seconds_saved": round(outcome.saved, 1),
        "seconds_without_cache": round(outcome.seconds, 1),
    }


def _show(results: dict[str, Outcomes], targets: list[Target]) -> None:
    for name, outcomes in results.items():
        rows = [
            [
                policy,
                f"{fmean(outcome.hit_rate for outcome in each):.1%}",
                fmean(outcome.saved for outcome in each),
                f"{fmean(outcome.saved_rate for outcome in each):.1%}",
            ]
            for policy, each in outcomes.items()
        ]
        count = len(next(iter(outcomes.values())))
        title = f"policy: {name}; mean of {count} traces" if count > 1 else f"policy: {name}"
        table(title, ["", "hits", "seconds saved", "of all seconds"], rows)
    show_targets("policy: what was promised", targets)


def _plot(out: Path, outcomes: Outcomes) -> None:
    drawing, axes = figure(1, 2, 9.6, 2.6)
    hits = {name: 100 * fmean(outcome.hit_rate for outcome in each) for name, each in outcomes.items()}
    saved = {name: 100 * fmean(outcome.saved_rate for outcome in each) for name, each in outcomes.items()}
    bars(axes[0][0], "hits, % of requests", hits)
    bars(axes[0][1], "compile time saved, %", saved)
    axes[0][1].set_yticklabels([])
    for axis in axes[0]:
        axis.set_xlim(0, 100)
    drawing.suptitle(DRIFT, x=0.01, ha="left", fontsize=10)
    save_plot(out, "policy", drawing)
