"""Ten thousand nodes against a modelled object store: what flight and packs save, and what they cost.

    python -m benchmarks.simulation [--quick] [--seeds N] [--plot FILE]

The nodes run ``hotstart.remote.flight.Seeker`` and ``hotstart.remote.breaker``, the very
state machines of the real client; the store, the network, the clocks, the deaths and the
compiles are modelled. Every number that goes in is below; none is measured here. Time is
simulated, so a run says nothing about the machine it runs on, and the same seeds give the
same numbers.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from pathlib import Path
from typing import Any

from hotstart.remote import flight
from hotstart.remote.breaker import ATTEMPTS, BOTH, NOTHING, Breaker, Strikes, pause_after
from hotstart.remote.contract import DEFAULT_TIMEOUT
from hotstart.remote.flight import ALONE, CREATE, DONE, LEAD, LOOK, PAUSE, PEEK, SURVEY, Seeker

#: Seconds of one request, median; the tail is log-normal.
GET, PUT, LIST, SPREAD = 0.015, 0.030, 0.040, 0.5

#: Requests a second that a prefix takes before it answers 503: what S3 documents.
GET_RATE, PUT_RATE = 5500.0, 3500.0

#: Requests that fail for no reason, with a 500.
FAILURES = 0.001

#: Seconds to compile one key, median; bytes of the result.
COMPILE, COMPILE_SPREAD, ENTRY = 20.0, 0.4, 100_000

#: Bytes a second of one node, from the store.
BANDWIDTH = 100e6

#: Nodes start within so many seconds of each other; leaders that die in the middle of a compile; how far clocks are
#: off and run wrong.
START, DEATHS, SKEW, DRIFT = 10.0, 0.1, 600.0, 1e-3

PACK, MANIFEST = 64 << 20, 20_000


class Store:
    """Objects and leases, with a bucket of tokens for each kind of request."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.entries: set[int] = set()
        self.leases: dict[int, set[int]] = {}
        self.requests = {"get": 0, "put": 0, "list": 0}
        self.throttled = 0
        self._tokens = {"get": GET_RATE, "put": PUT_RATE}
        self._at = {"get": 0.0, "put": 0.0}

    def refusal(self, now: float, kind: str, count: int) -> str:
        """What is wrong with a request now, as ``guard`` calls it; empty for one that is answered."""
        self.requests[kind] += count
        bucket = "get" if kind == "get" else "put"
        rate = GET_RATE if bucket == "get" else PUT_RATE
        tokens = min(rate, self._tokens[bucket] + (now - self._at[bucket]) * rate)
        self._at[bucket] = now
        if tokens < count:
            self._tokens[bucket] = tokens
            self.throttled += 1
            return "throttled"
        self._tokens[bucket] = tokens - count
        return "http_500" if self.chance.random() < FAILURES else ""

    def latency(self, kind: str) -> float:
        return {"get": GET, "put": PUT, "list": LIST}[kind] * math.exp(SPREAD * self.chance.gauss(0, 1))


class Node:
    """One host, which needs all keys in order. Its clock is its own: off by minutes, and a little fast or slow."""

    __slots__ = (
        "breakers",
        "bytes",
        "compiles",
        "hot",
        "key",
        "offset",
        "rate",
        "seeker",
        "started",
        "strikes",
        "tripped",
    )

    def __init__(self, world: World) -> None:
        chance = world.chance
        self.started = chance.uniform(0, START)
        self.offset = chance.uniform(-SKEW, SKEW)
        self.rate = 1 + chance.uniform(-DRIFT, DRIFT)
        self.key = 0
        self.compiles = 0
        self.bytes = 0
        self.hot = 0.0
        self.seeker: Seeker | None = None
        self.breakers = {side: Breaker("", lambda: self.clock(world.now)) for side in ("get", "put")}
        self.strikes = {side: Strikes(writing=side == "put") for side in ("get", "put")}
        self.tripped = 0

    def clock(self, now: float) -> float:
        return self.offset + now * self.rate

    def answered(self, side: str) -> None:
        self.strikes[side].answered()
        if self.breakers[side].cause:
            self.breakers[side].close()

    def failed(self, side: str, cause: str) -> None:
        then = self.strikes[side].failed("broken", cause)
        if then != NOTHING:
            self.tripped += 1
            for each in ("get", "put") if then == BOTH else (side,):
                self.breakers[each].open(cause)


class World:
    """All nodes and the store; ``mode`` says what of the protocol is used."""

    def __init__(self, nodes: int, keys: int, mode: str, seed: int = 1) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)
        self.store = Store(self.chance)
        self.keys, self.mode = keys, mode
        self.nodes = [Node(self) for _ in range(nodes)]
        self.compiled = [0] * keys
        self.deaths = 0
        self._events: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self._count = 0
        if mode == "packs":
            self.store.entries = set(range(keys))

    def at(self, when: float, call: Any, *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, call, arguments))

    def run(self) -> dict[str, Any]:
        for node in self.nodes:
            self.at(node.started, self.restore if self.mode == "packs" else self.want, node)
        while self._events:
            self.now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
        nodes = len(self.nodes)
        requests = sum(self.store.requests.values())
        waits = sorted(node.hot - node.started for node in self.nodes)
        return {
            "mode": self.mode, "nodes": nodes, "keys": self.keys,
            "compiles_per_key": sum(self.compiled) / self.keys,
            "requests_per_node": requests / nodes, "puts_per_node": self.store.requests["put"] / nodes,
            "bytes_per_node": sum(node.bytes for node in self.nodes) / nodes,
            "throttled": self.store.throttled, "deaths": self.deaths,
            "breakers_opened": sum(node.tripped for node in self.nodes),
            "seconds_to_all_hot": max(node.hot for node in self.nodes), "seconds_median": waits[nodes // 2],
            "hot": [round(node.hot, 2) for node in sorted(self.nodes, key=lambda node: node.hot)],
        }  # fmt: skip

    def ask(self, node: Node, kind: str, count: int, then: Any, failed: Any, *arguments: Any) -> None:
        """One call of a client: its breaker, attempts with jitter; ``then``, or ``failed`` and why."""
        side = "put" if kind == "put" else "get"
        if not node.breakers[side].is_closed(DEFAULT_TIMEOUT + 1):
            failed(node, "breaker", *arguments)
            return

        def answered(attempt: int) -> None:
            cause = self.store.refusal(self.now, kind, count)
            if not cause:
                node.answered(side)
                then(node, *arguments)
            elif attempt < ATTEMPTS:
                pause = pause_after(attempt, cause, self.chance.random())
                self.at(self.now + pause + self.store.latency(kind), answered, attempt + 1)
            else:
                node.failed(side, cause)
                failed(node, cause, *arguments)

        self.at(self.now + self.store.latency(kind), answered, 1)

    # -- a node that wants one key after another ---------------------------------

    def want(self, node: Node) -> None:
        if node.key == self.keys:
            node.hot = self.now
        elif self.mode == "alone":
            self.compile(node, 0)
        else:
            self.ask(node, "get", 1, self.looked, self.missed)

    def looked(self, node: Node) -> None:
        if node.key in self.store.entries:
            self.got(node)
        else:
            self.missed(node)

    def missed(self, node: Node, _: str = "") -> None:
        if self.mode == "shared" or node.breakers["put"].cause:
            self.compile(node, 0)
        else:
            node.seeker = Seeker(node.clock(self.now), self.chance.random, patience=900.0)
            self.step(node)

    def got(self, node: Node) -> None:
        node.seeker = None
        node.bytes += ENTRY
        node.key += 1
        self.at(self.now + ENTRY / BANDWIDTH, self.want, node)

    def step(self, node: Node) -> None:
        seeker = node.seeker
        assert seeker is not None
        number = int(seeker.number)
        if seeker.step == PAUSE:
            self.at(self.now + seeker.number / node.rate, self.paused, node)
        elif seeker.step == LOOK:
            self.ask(node, "get", 1, self.told_look, self.refused)
        elif seeker.step == PEEK:
            self.ask(node, "get", 2, self.told_peek, self.refused, number)
        elif seeker.step == SURVEY:
            self.ask(node, "list", 1, self.told_survey, self.refused)
        elif seeker.step == CREATE:
            self.ask(node, "put", 1, self.told_create, self.refused, number)
        elif seeker.step == DONE:
            if seeker.created:
                self.release(node.key)
            self.got(node)
        else:
            assert seeker.step in (LEAD, ALONE)
            self.compile(node, seeker.created)

    def paused(self, node: Node) -> None:
        assert node.seeker is not None
        node.seeker.told_pause(node.clock(self.now))
        self.step(node)

    def told_look(self, node: Node) -> None:
        assert node.seeker is not None
        node.seeker.told_look(node.clock(self.now), node.key in self.store.entries)
        self.step(node)

    def told_peek(self, node: Node, number: int) -> None:
        assert node.seeker is not None
        there = self.store.leases.get(node.key, set())
        node.seeker.told_peek(node.clock(self.now), number in there, number + 1 in there)
        self.step(node)

    def told_survey(self, node: Node) -> None:
        assert node.seeker is not None
        node.seeker.told_survey(node.clock(self.now), max(self.store.leases.get(node.key, set()), default=0))
        self.step(node)

    def told_create(self, node: Node, number: int) -> None:
        assert node.seeker is not None
        there = self.store.leases.setdefault(node.key, set())
        created = number not in there
        there.add(number)
        node.seeker.told_create(node.clock(self.now), created)
        self.step(node)

    def refused(self, node: Node, cause: str, *_: Any) -> None:
        """As ``leases`` takes it: one who is asked to slow down does, any other trouble means to compile alone."""
        assert node.seeker is not None
        if cause == "throttled":
            node.seeker.told_busy(node.clock(self.now))
        else:
            node.seeker.failed(cause)
        self.step(node)

    # -- compiling ---------------------------------------------------------------

    def compile(self, node: Node, lease: int) -> None:
        seconds = COMPILE * math.exp(COMPILE_SPREAD * self.chance.gauss(0, 1))
        self.compiled[node.key] += 1
        node.compiles += 1
        if lease and self.chance.random() < DEATHS:
            # It dies in the middle, and the node starts again from the beginning some time later.
            self.deaths += 1
            node.seeker = None
            self.at(self.now + seconds / 2 + 60, self.want, node)
            return
        end = self.now + seconds
        if lease:
            self.at(self.now + flight.renewal_after() / node.rate, self.renew, node, node.key, lease, end)
        self.at(end, self.compiled_one, node, lease)

    def renew(self, node: Node, key: int, lease: int, end: float) -> None:
        if self.now < end:
            there = self.store.leases.get(key, set())
            if not self.store.refusal(self.now, "put", 1) and lease + 1 not in there:
                there.add(lease + 1)
                lease += 1
            self.at(self.now + flight.renewal_after() / node.rate, self.renew, node, key, lease, end)

    def compiled_one(self, node: Node, lease: int) -> None:
        key, node.seeker = node.key, None
        if self.mode != "alone":
            # In the background: the node goes on at once.
            self.ask(node, "put", 1, self.published, self.unpublished, key, bool(lease))
        node.key += 1
        self.want(node)

    def published(self, _: Node, key: int, leased: bool) -> None:
        self.store.entries.add(key)
        if leased:
            self.release(key)

    def unpublished(self, node: Node, _: str, key: int, leased: bool) -> None:
        """Given up, as the queue does. A lease that cannot be removed either is taken over when its time is up."""
        if leased and not node.breakers["put"].cause:
            self.release(key)

    def release(self, key: int) -> None:
        self.store.leases.pop(key, None)

    # -- a named workload ----------------------------------------------------------

    def restore(self, node: Node) -> None:
        self.ask(node, "get", 1, self.manifest, self.compile_all)

    def compile_all(self, node: Node, *_: Any) -> None:
        """A start whose pull failed asks for what is missing entry by entry, and compiles."""
        self.want(node)

    def manifest(self, node: Node) -> None:
        node.bytes += MANIFEST
        self.pack(node, math.ceil(self.keys * ENTRY / PACK))

    def pack(self, node: Node, left: int) -> None:
        if left:
            self.ask(node, "get", 1, self.unpacked, self.compile_all, left)
        else:
            node.hot = self.now

    def unpacked(self, node: Node, left: int) -> None:
        size = min(PACK, self.keys * ENTRY)
        node.bytes += size
        node.key = self.keys
        self.at(self.now + size / BANDWIDTH, self.pack, node, left - 1)


MODES = {
    "alone": "no sharing",
    "shared": "sharing, no flight",
    "flight": "sharing and flight",
    "packs": "a named workload, pushed before",
}


def plot(results: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "hotstart"
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    for result in results:
        hot = result["hot"][:: max(1, len(result["hot"]) // 400)]
        share = [100 * (number + 1) / len(hot) for number in range(len(hot))]
        left.plot([max(second, 0.1) for second in hot], share, label=MODES[result["mode"]])
    left.set(xscale="log", xlabel="seconds since the fleet was started", ylabel="nodes that are hot (%)")
    left.legend(loc="center right", fontsize=8)
    left.grid(alpha=0.3)
    names = [MODES[result["mode"]].replace(", ", ",\n") for result in results]
    bars = right.bar(names, [max(result["compiles_per_key"]["median"], 0.01) for result in results], color="#4878a8")
    for bar, result in zip(bars, results, strict=True):
        compiles, requests = result["compiles_per_key"]["median"], result["requests_per_node"]["median"]
        text = f"{compiles:.4g} compiles\n{requests:.1f} requests\na node"
        right.annotate(
            text, (bar.get_x() + bar.get_width() / 2, bar.get_height()), ha="center", va="bottom", fontsize=8
        )
    right.set(yscale="log", ylabel="compiles per unique key", ylim=(0.005, 1e6))
    right.tick_params(axis="x", labelsize=7)
    figure.suptitle(
        f"{results[0]['nodes']:,} nodes, {results[0]['keys']} keys of {COMPILE:.0f} s, one modelled object store"
    )
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def spread(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the runs of one mode: for each number the median, the least and the most; the curve of the first."""
    first = results[0]
    found: dict[str, Any] = {
        "mode": first["mode"],
        "nodes": first["nodes"],
        "keys": first["keys"],
        "seeds": len(results),
    }
    for name in first:
        if name not in found and name != "hot":
            values = sorted(result[name] for result in results)
            found[name] = {"median": values[len(values) // 2], "least": values[0], "most": values[-1]}
    found["hot"] = first["hot"]
    return found


def shown(number: dict[str, float], form: str, scale: float = 1.0) -> str:
    median, least, most = (format(number[name] / scale, form) for name in ("median", "least", "most"))
    return median if least == most else f"{median} ({least}–{most})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="500 nodes")
    parser.add_argument("--keys", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    nodes = 500 if arguments.quick else 10_000
    results = []
    for mode, said in MODES.items():
        runs = [World(nodes, arguments.keys, mode, seed).run() for seed in range(1, arguments.seeds + 1)]
        result = spread(runs)
        results.append(result)
        print(
            f"{said}: compiles/key {shown(result['compiles_per_key'], ',.2f')}, requests/node"
            f" {shown(result['requests_per_node'], '.1f')}, MB/node {shown(result['bytes_per_node'], '.2f', 1e6)},"
            f" 503s {shown(result['throttled'], ',.0f')}, holders that died {shown(result['deaths'], '.0f')},"
            f" breakers opened {shown(result['breakers_opened'], ',.0f')},"
            f" all hot {shown(result['seconds_to_all_hot'], '.0f')} s, median node"
            f" {shown(result['seconds_median'], '.1f')} s",
            flush=True,
        )
    if arguments.json:
        kept = [{name: value for name, value in result.items() if name != "hot"} for result in results]
        arguments.json.write_text(json.dumps(kept, indent=1) + "\n")
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
