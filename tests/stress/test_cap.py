"""One cap over all processes, and blobs that entries share: hammered by many at once."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from pathlib import Path

import pytest

from hotstart import Cache, Key

spawn = multiprocessing.get_context("spawn")

WRITERS, OPENERS, SECONDS = 8, 4, 5.0
CAP, LARGEST = 1_000_000, 60_000


def write_for_a_while(root: str, seed: int, start: threading.Barrier) -> None:
    chance = random.Random(seed)
    opened = 0
    start.wait(120)
    stop_at = time.time() + SECONDS
    while time.time() < stop_at:
        # Openers come and go: each opens anew again and again, writers stay.
        with Cache(root, memory=0, max_size=CAP, policy=chance.choice(["lru", "cost"])) as cache:
            opened += 1
            while time.time() < stop_at:
                n = chance.randrange(400)
                size = chance.choice([100, 3_000, 20_000, LARGEST - 1_000])
                cache.put(Key("test", n=n), {"x": bytes([n % 251]) * size}, cost=chance.random())
                found = cache.get(Key("test", n=chance.randrange(400)))
                if found is not None and len(set(found["x"])) > 1:
                    os._exit(3)
                if seed >= WRITERS and chance.random() < 0.05:
                    break


def held(root: Path) -> int:
    """Bytes on disk. A walk is not an instant: what is renamed meanwhile may be seen twice or not at all."""
    total = 0
    for part in ("entries", "blobs", "tmp"):
        for directory, _, names in os.walk(root / part):
            for name in names:
                try:
                    total += os.stat(os.path.join(directory, name)).st_size
                except FileNotFoundError:
                    continue
    return total


def test_eight_writers_and_four_openers_never_pass_the_cap(tmp_path: Path) -> None:
    root = tmp_path / "s"
    Cache(root).close()
    start = spawn.Barrier(WRITERS + OPENERS + 1)
    processes = [
        spawn.Process(target=write_for_a_while, args=(str(root), seed, start)) for seed in range(WRITERS + OPENERS)
    ]
    for process in processes:
        process.start()
    start.wait(120)
    samples = []
    while any(process.is_alive() for process in processes):
        samples.append(held(root))
        time.sleep(0.01)
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(processes)
    assert len(samples) > 50
    assert max(samples) > CAP / 2
    assert max(samples) <= CAP + (WRITERS + OPENERS) * LARGEST
    with Cache(root, max_size=CAP) as cache:
        before = cache.stats()["bytes"]
        assert before >= held(root) - sum(p.stat().st_size for p in (root / "tmp").iterdir())
        cache.gc()
        assert cache.stats()["bytes"] == held(root) <= CAP
        assert not cache.verify()["damaged"]


SHARED = [bytes([n]) * 300_000 for n in range(6)]


def share_blobs(root: str, seed: int, rounds: int) -> int:
    """Put, read, delete and evict entries that share six blobs in a store that holds three of them."""
    chance = random.Random(seed)
    wrong = 0
    with Cache(root, memory=0, max_size=1_000_000, policy="lru") as cache:
        for _ in range(rounds):
            n = chance.randrange(12)
            blob = SHARED[n % 6]
            key = Key("test", n=n)
            what = chance.random()
            if what < 0.5:
                if cache.put(key, {"blob": blob, "own": b"%d" % n}):
                    # Nobody deletes this key but us (see below): evicted it may be, but never in part.
                    found = cache.get(key)
                    wrong += found is not None and found["blob"] != blob
            elif what < 0.9:
                found = cache.get(key)
                wrong += found is not None and (found["blob"] != blob or found["own"] != b"%d" % n)
            elif what < 0.97:
                cache.delete(key)
            else:
                cache.gc()
        # An entry whose blob was collected under it would show up as damaged.
        wrong += cache.stats()["corrupt"]
    return int(wrong)


def exit_with_wrong(root: str, seed: int, rounds: int) -> None:
    os._exit(min(100, share_blobs(root, seed, rounds)))


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_putting_referencing_and_collecting_a_blob_never_races(tmp_path: Path, kind: str) -> None:
    root = str(tmp_path / "s")
    if kind == "threads":
        outcomes: list[int] = []
        threads = [
            threading.Thread(target=lambda seed=seed: outcomes.append(share_blobs(root, seed, 120)))
            for seed in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes == [0] * 4
    else:
        processes = [spawn.Process(target=exit_with_wrong, args=(root, seed, 150)) for seed in range(6)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        assert [process.exitcode for process in processes] == [0] * 6
    with Cache(root, max_size=1_000_000) as cache:
        cache.gc()
        assert cache.stats()["bytes"] == held(Path(root)) <= 1_000_000
        cache.gc(max_size=0)
        assert held(Path(root)) == 0
