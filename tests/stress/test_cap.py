"""One cap over all processes: eight that write, four that open, and the disk looked at throughout.

Protects contract 5. For each look all processes are stopped, so that what is counted
is what was on the disk at one moment, not what a walk met on its way.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hotstart import Cache, Key
from hotstart.testing import audit

if TYPE_CHECKING:
    from tests.conftest import Child

WRITERS, OPENERS, SECONDS = 8, 4, 5.0
CAP = 400_000


def key(n: int) -> Key:
    return Key("cap", n=n)


def content(n: int) -> dict[str, bytes]:
    """From a hundred bytes to thirty thousand; of the larger ones half is a blob that others share."""
    own = (b"%d " % n * 6000)[: (100, 900, 3_000, 15_000)[n % 4]]
    return {"own": own, **({"shared": b"%d" % (n % 5) * 15_000} if n % 3 == 0 else {})}


def measured(swift_path: Path) -> int:
    """The most that one entry takes on the disk."""
    sizes = []
    for n in range(12):  # one of each kind
        with Cache(swift_path / f"one{n}", memory=0) as cache:
            assert cache.put(key(n), content(n))
            sizes.append(audit(swift_path / f"one{n}").bytes)
    return max(sizes) + 16  # keys with more digits


def write(root: Path, seed: int) -> None:
    chance = random.Random(seed)
    cache = Cache(root, max_size=CAP, memory=0, policy=("lru", "cost")[seed % 2])
    while True:
        n = chance.randrange(600)
        cache.put(key(n), content(n), cost=chance.random())
        read_one(cache, chance)


def open_and_read(root: Path, seed: int) -> None:
    chance = random.Random(seed)
    while True:
        with Cache(root, max_size=CAP, memory=0) as cache:
            for _ in range(chance.randrange(5)):
                read_one(cache, chance)
            len(cache)


def read_one(cache: Cache, chance: random.Random) -> None:
    n = chance.randrange(600)
    entry = cache.get(key(n))
    assert entry is None or dict(entry.items()) == content(n)


def test_eight_writers_and_four_openers_stay_below_the_cap(
    swift_path: Path, small_blobs: int, fork: Callable[..., Child], scale: int
) -> None:
    root = swift_path / "store"
    Cache(root).close()
    largest = measured(swift_path)
    children = [fork(write, root, seed) for seed in range(WRITERS)]
    children += [fork(open_and_read, root, seed) for seed in range(OPENERS)]
    samples = []
    until = time.monotonic() + SECONDS * scale
    while time.monotonic() < until:
        time.sleep(0.01)
        for child in children:
            child.send(signal.SIGSTOP)
        for child in children:
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                child.result()  # it ended, so it failed: this says how
        samples.append(audit(root))
        for child in children:
            child.send(signal.SIGCONT)
    for child in children:
        child.kill()
    assert len(samples) > 20, "looked too seldom to say anything"
    assert max(sample.bytes for sample in samples) > CAP * 0.8, "the store never filled: nothing was tested"
    # What has a name is below the cap; only what each writer is just writing comes on top.
    assert max(sample.bytes for sample in samples) <= CAP
    assert max(sample.bytes + sample.temporary_bytes for sample in samples) <= CAP + WRITERS * largest
    with Cache(root, max_size=CAP, memory=0) as cache:
        cache.gc()
        stats, truth = cache.stats(), audit(root)
        assert (stats["entries"], stats["bytes"]) == (truth.entries, truth.bytes)
        assert cache.verify()["damaged"] == []


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_room_is_made_for_what_is_needed_and_hardly_more(swift_path: Path, small_blobs: int, policy: str) -> None:
    """Blobs are most of the bytes: evicting must see them go, or it would give up far too many entries."""
    contents = [{"blob": b"%03d" % n * 5000} for n in range(60)]
    with Cache(swift_path / "one", memory=0) as cache:
        cache.put(key(0), contents[0])
        each = audit(swift_path / "one").bytes
    with Cache(swift_path / "store", memory=0, max_size=each * 40 + 200, policy=policy) as cache:
        for n, artifacts in enumerate(contents):
            assert cache.put(key(n), artifacts, cost=1.0)
            truth = audit(swift_path / "store")
            assert truth.bytes <= each * 40 + 200
            if n >= 40:
                assert truth.entries >= 35, "far more was evicted than down to the low watermark"


def test_accounts_that_are_too_high_do_not_lock_the_store_for_ever(swift_path: Path) -> None:
    """As crashes may leave them: when all is evicted and there is still no room, the total is added up anew."""
    with Cache(swift_path / "store", memory=0, max_size=100_000) as cache:
        for n in range(5):
            assert cache.put(key(n), {"x": bytes(5_000)})
        assert cache.disk is not None
        ledger = cache.disk.ledger
        assert ledger.acquire(5)
        ledger.bytes += 10_000_000
        ledger.save()
        ledger.release()
        assert cache.put(key(9), {"x": bytes(5_000)}), cache.stats()
        assert cache.stats()["bytes"] == audit(swift_path / "store").bytes


def test_an_entry_that_replaces_the_coldest_is_counted_once(swift_path: Path) -> None:
    """Making room may evict the very entry that is being replaced."""
    root = swift_path / "store"
    with Cache(root, memory=0, max_size=60_000, policy="lru") as cache:
        for turn in range(60):
            assert cache.put(key(turn % 6), {"x": bytes(8_000 + 500 * (turn % 7))})
            known, truth = cache.disk.ledger.peek() if cache.disk else None, audit(root)
            assert known == (truth.entries, truth.bytes)
