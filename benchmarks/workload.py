"""Requests to a cache, reproducible from a seed, and how well they could be served.

A trace draws from a *live* set of kernels by Zipf's law. Every few requests one of
the live kernels, at a random rank, is replaced by one never seen before: code is
edited, a model is exchanged. Size and compile time are log-normal and correlated,
since large kernels tend to compile longer. ``random.Random`` with a seed gives the
same trace on every Python and machine.
"""

from __future__ import annotations

import math
import random
from itertools import accumulate

#: Correlation of the logarithms of size and compile time.
_CORRELATION = 0.5


class Trace:
    """Kernels with a size in bytes and a compile time in seconds, and the order they are asked for."""

    __slots__ = ("costs", "requests", "sizes")

    def __init__(self, seed: int, *, requests: int, live: int, renew_every: int = 0, exponent: float = 0.9) -> None:
        rng = random.Random(seed)
        weights = list(accumulate((rank + 1) ** -exponent for rank in range(live)))
        current = list(range(live))
        known = live
        drawn = []
        for n in range(requests):
            if renew_every and n % renew_every == renew_every - 1:
                current[rng.randrange(live)] = known
                known += 1
            drawn.append(current[rng.choices(range(live), cum_weights=weights)[0]])
        numbers = {kernel: n for n, kernel in enumerate(dict.fromkeys(drawn))}
        self.requests = [numbers[kernel] for kernel in drawn]
        self.sizes: list[int] = []
        self.costs: list[float] = []
        for _ in numbers:
            first, second = rng.gauss(0, 1), rng.gauss(0, 1)
            related = _CORRELATION * first + math.sqrt(1 - _CORRELATION**2) * second
            self.sizes.append(int(min(16_000 * math.exp(first), 1_000_000)))
            self.costs.append(0.4 * math.exp(1.2 * related))


class Outcome:
    """How a policy served a trace."""

    __slots__ = ("hits", "requests", "saved", "seconds")

    def __init__(self, trace: Trace) -> None:
        self.requests = len(trace.requests)
        #: Compile time without a cache.
        self.seconds = sum(trace.costs[kernel] for kernel in trace.requests)
        self.hits = 0.0
        self.saved = 0.0

    @property
    def hit_rate(self) -> float:
        return self.hits / self.requests

    @property
    def saved_rate(self) -> float:
        return self.saved / self.seconds


def next_uses(trace: Trace) -> list[float]:
    """For each request, when the same kernel is wanted again; infinite for the last time."""
    following: list[float] = [math.inf] * len(trace.requests)
    seen: dict[int, int] = {}
    for at in range(len(trace.requests) - 1, -1, -1):
        following[at] = seen.get(trace.requests[at], math.inf)
        seen[trace.requests[at]] = at
    return following


def bound(trace: Trace, sizes: list[int], cap: int) -> Outcome:
    """More than any policy can reach, even one that knows the future and may refuse to store.

    To make a request a hit, its kernel has to be held since the last one: that takes
    size × time of the cache, of which there is cap × length of the trace. The
    intervals that give most for what they take are chosen until all is taken (the
    last one in part), once counting hits and once seconds. The true optimum also has
    to fit at every single moment, so it is lower.
    """
    outcome = Outcome(trace)
    intervals = []
    for at, until in enumerate(next_uses(trace)):
        kernel = trace.requests[at]
        if until < math.inf and sizes[kernel] <= cap:
            intervals.append((sizes[kernel] * (until - at), trace.costs[kernel]))
    budget = float(cap) * len(trace.requests)
    outcome.hits = _fill(sorted((taken, 1.0) for taken, _ in intervals), budget)
    outcome.saved = _fill(sorted(intervals, key=lambda interval: interval[0] / interval[1]), budget)
    return outcome


def _fill(intervals: list[tuple[float, float]], budget: float) -> float:
    total = 0.0
    for taken, worth in intervals:
        total += worth * min(1.0, budget / taken)
        budget -= taken
        if budget <= 0:
            break
    return total


def clairvoyant(trace: Trace, sizes: list[int], cap: int, *, by_cost: bool) -> Outcome:
    """Bélády's rule for unequal sizes, greedy: what can really be had by knowing the future.

    Given up first is what gives least for the size × time it would take until its
    next use: a hit, or ``by_cost`` the seconds of its compile. What is wanted last of
    all is not stored. With unequal sizes no rule is known to be optimal (the problem
    is NP-hard); the optimum lies between this and ``bound``.
    """
    outcome = Outcome(trace)
    held: dict[int, float] = {}
    free = cap
    for at, until in enumerate(next_uses(trace)):
        kernel = trace.requests[at]
        if kernel in held:
            outcome.hits += 1
            outcome.saved += trace.costs[kernel]
        else:
            free -= sizes[kernel]
        held[kernel] = until
        if free < 0 or until == math.inf:

            def worth(other: int, now: int = at) -> float:
                gain = trace.costs[other] if by_cost else 1.0
                return gain / (sizes[other] * (held[other] - now))

            for other in sorted(held, key=worth):
                if free >= 0 and held[other] < math.inf:
                    break
                free += sizes[other]
                del held[other]
    return outcome


def at_random(trace: Trace, sizes: list[int], cap: int, seed: int) -> Outcome:
    """Evicts whatever chance picks: what a policy has to beat to be worth its code."""
    rng = random.Random(seed)
    outcome = Outcome(trace)
    held: list[int] = []
    places: dict[int, int] = {}
    free = cap
    for kernel in trace.requests:
        if kernel in places:
            outcome.hits += 1
            outcome.saved += trace.costs[kernel]
            continue
        if sizes[kernel] > cap:
            continue
        free -= sizes[kernel]
        while free < 0:
            victim = rng.randrange(len(held))
            places[held[-1]] = victim
            held[victim], held[-1] = held[-1], held[victim]
            gone = held.pop()
            del places[gone]
            free += sizes[gone]
        places[kernel] = len(held)
        held.append(kernel)
    return outcome
