"""What was used last is kept longest, whoever used it and from whichever tier.

Protects ``policy="lru"``: the order is exact, over processes, memory hits included.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hotstart import Cache, Key
from hotstart.testing import audit

if TYPE_CHECKING:
    from tests.conftest import Child

HELD = 40
SIZE = 3_000


def key(n: int) -> Key:
    return Key("recency", n=f"{n:03}")


@pytest.fixture
def cap(swift_path: Path) -> int:
    """Room for ``HELD`` entries and not one more."""
    with Cache(swift_path / "one", memory=0) as cache:
        assert cache.put(key(0), {"x": bytes(SIZE)})
        return audit(swift_path / "one").bytes * HELD


def fill(cache: Cache) -> None:
    for n in range(HELD):
        assert cache.put(key(n), {"x": bytes(SIZE)})


def held(cache: Cache) -> set[int]:
    return {n for n in range(3 * HELD) if key(n) in cache}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lose_index", [False, True])
def test_the_order_of_eviction_is_the_order_of_use(swift_path: Path, cap: int, seed: int, lose_index: bool) -> None:
    """Entries go in exactly the order of their last use; losing the index changes nothing, for files remember."""
    chance = random.Random(seed)
    root = swift_path / "store"
    with Cache(root, memory=0, max_size=cap, policy="lru") as cache:
        fill(cache)
        order = list(range(HELD))
        for n in chance.choices(range(HELD), k=3 * HELD):
            assert cache.get(key(n)) is not None
            order.remove(n)
            order.append(n)
        for n in range(HELD, 2 * HELD):
            if lose_index and n % 10 == 0:
                (root / "index.sqlite").unlink(missing_ok=True)
            assert cache.put(key(n), {"x": bytes(SIZE)})
            order.append(n)
            left = held(cache)
            assert left == set(order[-len(left) :]), "something other than the least recently used went"
            order = order[-len(left) :]


def test_a_read_in_another_process_protects(swift_path: Path, cap: int, fork: Callable[..., Child]) -> None:
    root = swift_path / "store"
    cache = Cache(root, memory=0, max_size=cap, policy="lru")
    fill(cache)
    chosen = [0, 3, 17, 1]

    def read() -> bool:
        with Cache(root, memory=0) as other:
            return all(other.get(key(n)) is not None for n in chosen)

    assert fork(read).result()
    for n in range(HELD, HELD + 10):
        assert cache.put(key(n), {"x": bytes(SIZE)})
    left = held(cache)
    assert left >= set(chosen)
    assert 2 not in left and 4 not in left
    cache.close()


def test_a_hit_in_memory_protects(swift_path: Path, cap: int) -> None:
    """Told to the disk at the latest when this process evicts: a hot entry must not look unused."""
    with Cache(swift_path / "store", max_size=cap, policy="lru") as cache:
        fill(cache)
        for n in (0, 1, 2):
            entry = cache.get(key(n))
            assert entry is not None and entry.tier == "memory"
        for n in range(HELD, HELD + 10):
            assert cache.put(key(n), {"x": bytes(SIZE)})
        assert cache.disk is not None
        left = {n for n in range(HELD) if cache.disk.contains(key(n).digest)}
        assert left >= {0, 1, 2}
        assert not left & {3, 4, 5}


def test_a_hit_in_memory_is_known_to_other_processes_once_the_cache_is_closed(
    swift_path: Path, cap: int, fork: Callable[..., Child]
) -> None:
    root = swift_path / "store"
    with Cache(root, max_size=cap, policy="lru", memory=0) as cache:
        fill(cache)

    def read() -> str:
        with Cache(root) as other:
            other.get(key(0))
            entry = other.get(key(1)), other.get(key(0))
            return entry[1].tier if entry[1] is not None else ""

    assert fork(read).result() == "memory"
    with Cache(root, max_size=cap, policy="lru", memory=0) as cache:
        for n in range(2, HELD):  # everything but 0 and 1 is used after them, in memory or on disk
            assert cache.get(key(n)) is not None
        for n in range(HELD, HELD + 2):
            assert cache.put(key(n), {"x": bytes(SIZE)})
        gone = set(range(HELD)) - held(cache)
        assert gone >= {0, 1}
        assert gone == {0, 1, *range(2, len(gone))}


def test_the_pinned_stay_whatever_comes(swift_path: Path, cap: int, fork: Callable[..., Child]) -> None:
    root = swift_path / "store"
    with Cache(root, memory=0, max_size=cap, policy="lru") as cache:
        fill(cache)
        for n in (0, 1, 2):
            assert cache.pin(key(n))

    def flood() -> bool:
        with Cache(root, memory=0, max_size=cap, policy="cost") as other:
            for n in range(HELD, 3 * HELD):
                other.put(key(n), {"x": bytes(SIZE)}, cost=100.0)
            other.gc(max_size=0)
            return all(other.get(key(n)) is not None for n in (0, 1, 2))

    assert fork(flood).result()
    with Cache(root, memory=0, max_size=cap) as cache:
        assert held(cache) == {0, 1, 2}
        assert cache.unpin(key(1)) and not cache.unpin(key(1))
        cache.gc(max_size=0)
        assert held(cache) == {0, 2}
