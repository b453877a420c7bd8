"""Ten thousand nodes against a modelled object store: what flight and packs save, and what they cost.

    python -m benchmarks.simulation [--quick] [--plot FILE]

The nodes run ``hotstart.remote.flight.Seeker``, the very state machine of the real
client; the store, the network, the clocks and the compiles are modelled. Every number
that goes in is below; none is measured here. Time is simulated, so a run says nothing
about the machine it runs on, and the same seed gives the same numbers.
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
from hotstart.remote.flight import ALONE, CREATE, DONE, LEAD, LOOK, PAUSE, PEEK, SURVEY, Seeker

#: Seconds of one request, median; the tail is log-normal.
GET, PUT, LIST, SPREAD = 0.015, 0.030, 0.040, 0.5

#: Requests a second that a prefix takes before it answers 503: what S3 documents.
GET_RATE, PUT_RATE = 5500.0, 3500.0

#: Requests that fail for no reason; attempts that a client makes, and its first pause after a 503: as ``guard`` does.
FAILURES, ATTEMPTS, SLOW_DOWN = 0.001, 3, 0.2

#: Seconds to compile one key, median; bytes of the result.
COMPILE, COMPILE_SPREAD, ENTRY = 20.0, 0.4, 100_000

#: Bytes a second of one node, from the store.
BANDWIDTH = 100e6

#: Nodes start within so many seconds of each other; leaders that die; how far clocks are off and run wrong.
START, DEATHS, SKEW, DRIFT = 10.0, 0.02, 600.0, 1e-3

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

    def admits(self, now: float, kind: str, count: int) -> bool:
        self.requests[kind] += count
        bucket = "get" if kind == "get" else "put"
        rate = GET_RATE if bucket == "get" else PUT_RATE
        tokens = min(rate, self._tokens[bucket] + (now - self._at[bucket]) * rate)
        self._at[bucket] = now
        if tokens < count:
            self._tokens[bucket] = tokens
            self.throttled += 1
            return False
        self._tokens[bucket] = tokens - count
        return self.chance.random() >= FAILURES

    def latency(self, kind: str) -> float:
        return {"get": GET, "put": PUT, "list": LIST}[kind] * math.exp(SPREAD * self.chance.gauss(0, 1))


class Node:
    """One host, which needs all keys in order. Its clock is its own: off by minutes, and a little fast or slow."""

    __slots__ = ("attempt", "bytes", "compiles", "hot", "key", "offset", "rate", "seeker", "started")

    def __init__(self, chance: random.Random) -> None:
        self.started = chance.uniform(0, START)
        self.offset = chance.uniform(-SKEW, SKEW)
        self.rate = 1 + chance.uniform(-DRIFT, DRIFT)
        self.key = 0
        self.compiles = 0
        self.bytes = 0
        self.attempt = 0
        self.hot = 0.0
        self.seeker: Seeker | None = None

    def clock(self, now: float) -> float:
        return self.offset + now * self.rate


class World:
    """All nodes and the store; ``mode`` says what of the protocol is used."""

    def __init__(self, nodes: int, keys: int, mode: str, seed: int = 1) -> None:
        self.chance = random.Random(seed)
        self.store = Store(self.chance)
        self.keys, self.mode = keys, mode
        self.nodes = [Node(self.chance) for _ in range(nodes)]
        self.compiled = [0] * keys
        self.deaths = 0
        self._events: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self._count = 0
        self.now = 0.0
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
            "seconds_to_all_hot": max(node.hot for node in self.nodes), "seconds_median": waits[nodes // 2],
            "hot": [round(node.hot, 2) for node in sorted(self.nodes, key=lambda node: node.hot)],
        }  # fmt: skip

    def ask(self, kind: str, count: int, then: Any, busy: Any, *arguments: Any) -> None:
        """One call of a client: attempts with jitter, then ``then`` or, when all were refused, ``busy``."""

        def answered(attempt: int) -> None:
            if self.store.admits(self.now, kind, count):
                then(*arguments)
            elif attempt < ATTEMPTS:
                pause = self.chance.uniform(0, SLOW_DOWN * 2**attempt)
                self.at(self.now + pause + self.store.latency(kind), answered, attempt + 1)
            else:
                busy(*arguments)

        self.at(self.now + self.store.latency(kind), answered, 1)

    # -- a node that wants one key after another ---------------------------------

    def want(self, node: Node) -> None:
        if node.key == self.keys:
            node.hot = self.now
        elif self.mode == "alone":
            self.compile(node, 0)
        else:
            self.ask("get", 1, self.looked, self.missed, node)

    def looked(self, node: Node) -> None:
        if node.key in self.store.entries:
            self.got(node)
        else:
            self.missed(node)

    def missed(self, node: Node) -> None:
        if self.mode == "shared":
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
            self.ask("get", 1, self.told_look, self.busy, node)
        elif seeker.step == PEEK:
            self.ask("get", 2, self.told_peek, self.busy, node, number)
        elif seeker.step == SURVEY:
            self.ask("list", 1, self.told_survey, self.busy, node)
        elif seeker.step == CREATE:
            self.ask("put", 1, self.told_create, self.busy, node, number)
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

    def busy(self, node: Node, *_: Any) -> None:
        assert node.seeker is not None
        node.seeker.told_busy(node.clock(self.now))
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
            if self.store.admits(self.now, "put", 1) and lease + 1 not in there:
                there.add(lease + 1)
                lease += 1
            self.at(self.now + flight.renewal_after() / node.rate, self.renew, node, key, lease, end)

    def compiled_one(self, node: Node, lease: int) -> None:
        key, node.seeker = node.key, None
        if self.mode != "alone":
            # In the background: the node goes on at once.
            self.at(self.now + self.store.latency("put"), self.published, key, bool(lease), 1)
        node.key += 1
        self.want(node)

    def published(self, key: int, leased: bool, attempt: int) -> None:
        if self.store.admits(self.now, "put", 1):
            self.store.entries.add(key)
        elif attempt < 10:
            pause = self.chance.uniform(0, SLOW_DOWN * 2 ** min(attempt, 5))
            self.at(self.now + pause, self.published, key, leased, attempt + 1)
            return
        if leased:
            self.release(key)

    def release(self, key: int) -> None:
        self.store.leases.pop(key, None)

    # -- a named workload ----------------------------------------------------------

    def restore(self, node: Node) -> None:
        self.ask("get", 1, self.manifest, self.restore_later, node)

    def restore_later(self, node: Node) -> None:
        self.at(self.now + self.chance.uniform(0, 2), self.restore, node)

    def manifest(self, node: Node) -> None:
        node.bytes += MANIFEST
        self.pack(node, math.ceil(self.keys * ENTRY / PACK))

    def pack(self, node: Node, left: int) -> None:
        if left:
            self.ask("get", 1, self.unpacked, self.pack, node, left)
        else:
            node.hot = self.now

    def unpacked(self, node: Node, left: int) -> None:
        size = min(PACK, self.keys * ENTRY)
        node.bytes += size
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
    bars = right.bar(names, [max(result["compiles_per_key"], 0.01) for result in results], color="#4878a8")
    for bar, result in zip(bars, results, strict=True):
        text = f"{result['compiles_per_key']:.4g} compiles\n{result['requests_per_node']:.1f} requests\na node"
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="500 nodes")
    parser.add_argument("--keys", type=int, default=8)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    nodes = 500 if arguments.quick else 10_000
    results = []
    print(f"{'':34}{'compiles/key':>13}{'requests/node':>15}{'MB/node':>9}{'503s':>8}{'all hot (s)':>13}{'median':>9}")
    for mode, said in MODES.items():
        result = World(nodes, arguments.keys, mode).run()
        results.append(result)
        print(
            f"{said:34}{result['compiles_per_key']:13.2f}{result['requests_per_node']:15.1f}"
            f"{result['bytes_per_node'] / 1e6:9.2f}{result['throttled']:8}{result['seconds_to_all_hot']:13.0f}"
            f"{result['seconds_median']:9.1f}",
            flush=True,
        )
    if arguments.json:
        kept = [{name: value for name, value in result.items() if name != "hot"} for result in results]
        arguments.json.write_text(json.dumps(kept, indent=1) + "\n")
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
