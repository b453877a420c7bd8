"""Eviction: exact order, one cap, nothing admitted by emptying the store, nothing pinned lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotstart import Cache, Key
from hotstart.store.eviction import LOOKS, MOST_AHEAD
from hotstart.store.ledger import Ledger
from hotstart.store.upkeep import Upkeep


def key(n: object) -> Key:
    return Key("test", n=n)


def on_disk(root: Path) -> int:
    return sum(
        path.stat().st_size for part in ("entries", "blobs") for path in (root / part).rglob("*") if path.is_file()
    )


def held(cache: Cache, count: int) -> list[int]:
    return [n for n in range(count) if key(n) in cache]


def test_lru_is_exact_whatever_the_order_of_reads(tmp_path: Path) -> None:
    """Read in random order, shrink step by step: entries must go in exactly that order."""
    with Cache(tmp_path / "s", memory=0, policy="lru") as cache:
        for n in range(60):
            cache.put(key(n), {"x": bytes(1000)})
        order = list(range(60))
        random.Random(7).shuffle(order)
        for n in order:
            assert cache.get(key(n)) is not None
        size = cache.stats()["bytes"] // 60
        for left in range(55, 0, -5):
            cache.gc(max_size=left * size + left)
            assert sorted(order[-left:]) == held(cache, 60)


def test_reads_faster_than_the_kernels_clock_still_have_an_order(tmp_path: Path) -> None:
    with Cache(tmp_path / "s", memory=0, policy="lru") as cache:
        for n in range(20):
            cache.put(key(n), {})
        for n in reversed(range(20)):
            cache.get(key(n))
        times = [os.stat(cache._disk.path(key(n).digest)).st_mtime_ns for n in range(20)]  # type: ignore[union-attr]
        assert times == sorted(times, reverse=True)
        assert len(set(times)) == 20


def test_hits_in_memory_count_as_uses(tmp_path: Path) -> None:
    with Cache(tmp_path / "s", policy="lru", max_size=12_000) as cache:
        for n in range(8):
            cache.put(key(n), {"x": bytes(1000)})
        for _ in range(3):
            assert cache.get(key(0)) is not None
        assert cache.stats()["hits"] == {"memory": 3, "disk": 0, "layer": 0, "flight": 0}
        for n in range(8, 14):
            cache.put(key(n), {"x": bytes(1000)})
        assert cache.stats()["evicted"] > 0
    with Cache(tmp_path / "s", memory=0) as cache:
        kept = held(cache, 14)
        assert 0 in kept and 1 not in kept


def test_a_read_in_another_process_counts(tmp_path: Path) -> None:
    with Cache(tmp_path / "s", memory=0, policy="lru") as cache:
        for n in range(6):
            cache.put(key(n), {"x": bytes(1000)})
        program = (
            "import sys, hotstart\n"
            "with hotstart.Cache(sys.argv[1]) as cache:\n"
            "    assert cache.get(hotstart.Key('test', n=0)) is not None\n"
            "    assert cache.get(hotstart.Key('test', n=0)).tier == 'memory'\n"
        )
        subprocess.run([sys.executable, "-c", program, str(tmp_path / "s")], check=True)
        cache.gc(max_size=cache.stats()["bytes"] // 3 + 10)
        assert held(cache, 6) == [0, 5]


def test_cost_keeps_what_is_dear_for_its_size(tmp_path: Path) -> None:
    with Cache(tmp_path / "s", memory=0, policy="cost") as cache:
        cache.put(key(0), {"x": bytes(1000)}, cost=100.0)
        cache.put(key(1), {"x": bytes(100_000)}, cost=100.0)
        cache.put(key(2), {"x": bytes(1000)}, cost=0.001)
        cache.put(key(3), {"x": bytes(1000)}, cost=10.0)
        cache.gc(max_size=4000)
        assert held(cache, 4) == [0, 3]


def test_cost_does_not_keep_for_ever_what_nobody_wants(tmp_path: Path) -> None:
    """GreedyDual ages: after enough evictions a dear entry that is never read goes, too."""
    with Cache(tmp_path / "s", memory=0, policy="cost", max_size=20_000) as cache:
        cache.put(key("dear"), {"x": bytes(1000)}, cost=5.0)
        for n in range(400):
            cache.put(key(n), {"x": bytes(1000)}, cost=1.0)
            cache.get(key(n))
        assert key("dear") not in cache


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_the_cap_holds_and_the_accounts_agree_with_the_disk(tmp_path: Path, policy: str) -> None:
    root = tmp_path / "s"
    chance = random.Random(3)
    with Cache(root, memory=0, policy=policy, max_size=600_000) as cache:
        for n in range(300):
            size = chance.choice([100, 5_000, 40_000, 300_000])
            cache.put(key(chance.randrange(200)), {"x": bytes([n % 251]) * size}, cost=chance.random())
            if n % 10 == 0:
                assert cache.stats()["bytes"] == on_disk(root) <= 600_000
        assert len(cache) == len(list((root / "entries").rglob("*/*")))
        assert cache.stats()["evicted"] > 50


def test_a_full_store_does_not_evict_on_every_put(tmp_path: Path) -> None:
    with Cache(tmp_path / "s", memory=0, policy="lru", max_size=2_000_000) as cache:
        rounds = 0
        last = 0
        for n in range(3000):
            cache.put(key(n), {"x": bytes(1000)})
            evicted = cache.stats()["evicted"]
            rounds += evicted > last
            assert evicted - last <= MOST_AHEAD + 2
            last = evicted
        assert last > 1000
        assert rounds < last / 20


def test_an_entry_larger_than_the_cap_is_refused_and_evicts_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path / "s", memory=0, max_size=50_000) as cache:
        for n in range(10):
            cache.put(key(n), {"x": bytes(1000)})
        assert not cache.put(key("huge"), {"x": bytes(60_000)})
        assert not cache.put(key("huge"), {"a": bytes(30_000), "b": os.urandom(30_000)})
        assert not cache.put(key("huge"), {"x": bytes(600_000)})
        assert held(cache, 10) == list(range(10))
        assert cache.stats()["refused"] == {"oversize": 3}
        assert cache.get_or_compile(key("huge"), lambda: {"x": bytes(60_000)})["x"] == bytes(60_000)


def test_what_is_pinned_stays(tmp_path: Path) -> None:
    with Cache(tmp_path / "s", memory=0, policy="lru", max_size=20_000) as cache:
        for n in range(5):
            cache.put(key(n), {"x": bytes(1000)})
        assert cache.pin(key(0)) and cache.pin(key(3))
        for n in range(5, 100):
            cache.put(key(n), {"x": bytes(1000)})
        assert {0, 3} <= set(held(cache, 100))
        cache.gc(max_size=0)
        assert held(cache, 100) == [0, 3]
        assert cache.unpin(key(0))
        assert not cache.unpin(key(0))
        cache.gc(max_size=0)
        assert held(cache, 100) == [3]


def test_a_store_full_of_pins_refuses_and_says_so(tmp_path: Path) -> None:
    with Cache(tmp_path / "s", memory=0, max_size=12_000) as cache:
        n = 0
        while cache.stats()["bytes"] < 10_500:
            cache.put(key(n), {"x": bytes(1000)})
            cache.pin(key(n))
            n += 1
        assert not cache.put(key("more"), {"x": bytes(5000)})
        assert cache.stats()["refused"] == {"full": 1}
        assert held(cache, n) == list(range(n))


def test_without_sqlite_the_store_serves_and_the_cap_holds(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["sqlite3"] = None
import hotstart
from pathlib import Path
root = Path(sys.argv[1])
with hotstart.Cache(root, memory=0, max_size=100_000) as cache:
    for n in range(300):
        assert cache.put(hotstart.Key("test", n=n), {"x": bytes(1000)}), cache.stats()
        total = sum(path.stat().st_size for path in (root / "entries").rglob("*/*"))
        assert total <= 100_000, total
        assert cache.stats()["bytes"] == total
    assert cache.get(hotstart.Key("test", n=299)) is not None
    assert cache.get(hotstart.Key("test", n=0)) is None
    assert cache.stats()["evicted"] > 200
    assert cache.put(hotstart.Key("test", n=0), {"x": b"", "large": bytes(50_000)})
    cache.gc(max_size=0)
    print("served")
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "s")], capture_output=True, text=True)
    assert done.stdout == "served\n", done.stderr


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries were looked at in each turn of the ledger's lock."""
    looked: list[int] = []
    acquire, last_use = Ledger.acquire, Upkeep._last_use

    def counted_acquire(ledger: Ledger, wait: float) -> bool:
        looked.append(0)
        return acquire(ledger, wait)

    def counted_look(upkeep: Upkeep, digest: bytes) -> int | None:
        looked[-1] += 1
        return last_use(upkeep, digest)

    monkeypatch.setattr(Ledger, "acquire", counted_acquire)
    monkeypatch.setattr(Upkeep, "_last_use", counted_look)
    return looked


def filled_and_read(root: Path, count: int) -> tuple[Cache, list[int]]:
    """A store that is full and was read from end to end, in an order of its own."""
    size = 10_000_000
    with Cache(root, memory=0, policy="lru", max_size=size) as cache:
        for n in range(count):
            assert cache.put(key(n), {"x": bytes(100)})
        size = cache.stats()["bytes"]
    cache = Cache(root, memory=0, policy="lru", max_size=size)
    order = random.Random(3).sample(range(count), count)
    for n in order:
        assert cache.get(key(n)) is not None
    return cache, order


def test_a_store_that_was_read_whole_is_ranked_in_several_turns_and_still_exactly(
    tmp_path: Path, turns: list[int]
) -> None:
    """Looking at every entry in one turn would keep all others from writing for seconds."""
    count = 3 * LOOKS
    cache, order = filled_and_read(tmp_path / "s", count)
    with cache:
        turns.clear()
        assert cache.put(key("new"), {"x": bytes(100)})
        assert max(turns) <= LOOKS
        assert sum(turns) >= count
        gone = [n for n in order if key(n) not in cache]
        assert gone == order[: len(gone)]
        assert gone


def test_others_write_while_a_store_is_being_ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, _ = filled_and_read(tmp_path / "s", 2 * LOOKS)
    written = []

    def another(_seconds: float) -> None:
        """What runs in the gap between two turns: a put in the place of an entry, for which no room is needed."""
        with Cache(tmp_path / "s", memory=0, policy="lru", max_size=cache.stats()["max_size"]) as other:
            written.append(other.put(key(5), {"x": bytes(100)}))

    monkeypatch.setattr("hotstart.store.naming.sleep", another)
    with cache:
        assert cache.put(key("new"), {"x": bytes(100)})
        assert written
        assert all(written)
        assert key(5) in cache


def test_a_put_for_which_ranking_takes_too_long_is_dropped_and_the_next_goes_on_from_there(
    tmp_path: Path, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 4 * LOOKS
    cache, _ = filled_and_read(tmp_path / "s", count)
    with cache:
        monkeypatch.setattr("hotstart.store.ledger.LOCK_WAIT", 0.0)
        monkeypatch.setattr("hotstart.store.naming.sleep", lambda _seconds: time.sleep(0.01))
        turns.clear()
        puts = 0
        while not cache.put(key("new"), {"x": bytes(100)}):
            puts += 1
            assert puts < 10
        assert puts
        assert cache.stats()["refused"] == {"crowded": puts}
        assert count <= sum(turns) <= count + 2 * LOOKS


def test_gc_of_a_large_store_lets_others_have_their_turns(tmp_path: Path, turns: list[int]) -> None:
    count = 2 * LOOKS
    cache, order = filled_and_read(tmp_path / "s", count)
    with cache:
        turns.clear()
        each = cache.stats()["bytes"] // count
        report = cache.gc(max_size=each * 100)
        assert report["entries"] >= count - 101
        assert max(turns) <= LOOKS
        assert [n for n in order if key(n) in cache] == order[int(report["entries"]) :]
