"""The memory tier: bounded, exact in its order, and honest about what is a value."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hotstart import SizeError, UsageError
from hotstart.store.memory import MISSING, Memory


def test_what_was_put_is_what_comes_back() -> None:
    memory = Memory(100, 10)
    value = bytearray(b"x")
    assert memory.put("a", value, 1)
    assert memory.get("a") is value


@pytest.mark.parametrize("value", [None, b"", 0, False, ()])
def test_empty_values_are_values(value: Any) -> None:
    memory = Memory(100, 10)
    memory.put("a", value, 0)
    assert memory.get("a") is value
    assert memory.get("b") is MISSING


@pytest.mark.parametrize(("size", "count"), [(0, 10), (100, 0)])
def test_zero_means_off_never_unbounded(size: int, count: int) -> None:
    memory = Memory(size, count)
    assert not memory.put("a", b"x", 1)
    assert not memory.put("b", b"", 0)
    assert len(memory) == 0


def test_least_recently_used_goes_first_in_bytes_and_in_entries() -> None:
    memory = Memory(30, 10)
    for name in "abc":
        memory.put(name, name, 10)
    memory.get("a")
    memory.put("d", "d", 10)
    assert [name for name in "abcd" if name in memory] == ["a", "c", "d"]
    few = Memory(1000, 2)
    for name in "abc":
        few.put(name, name, 1)
    assert [name for name in "abc" if name in few] == ["b", "c"]
    assert few.evicted == 1


def test_what_is_larger_than_everything_evicts_nothing() -> None:
    memory = Memory(10, 10)
    memory.put("a", "a", 10)
    assert not memory.put("b", "b", 11)
    assert memory.get("a") == "a"


def test_replacing_counts_the_bytes_once() -> None:
    memory = Memory(10, 10)
    for _ in range(5):
        memory.put("a", "a", 10)
    assert memory.bytes == 10
    assert memory.delete("a")
    assert not memory.delete("a")
    assert memory.bytes == 0


def test_uses_are_told_at_the_latest_when_flushed_or_dropped() -> None:
    told: dict[str, int] = {}
    memory = Memory(20, 10, told=lambda key, used: told.__setitem__(key, used))
    memory.put("a", "a", 10)
    memory.put("b", "b", 10)
    memory.get("b")
    memory.get("a")
    memory.flush()
    assert told["b"] < told["a"]
    told.clear()
    memory.get("b")
    memory.put("c", "c", 10)  # drops a, whose use is known
    memory.put("d", "d", 10)  # drops b, whose last use is not
    assert list(told) == ["b"]


@pytest.mark.parametrize("size", [-1, "10 GB", "x", 1.5, True])
def test_sizes_that_make_no_sense_are_refused(size: Any) -> None:
    with pytest.raises(SizeError):
        Memory(size)
    with pytest.raises(UsageError):
        Memory(10, -1)


def test_threads_do_not_break_the_accounts() -> None:
    memory = Memory(500, 20)

    def work(seed: int) -> None:
        for step in range(2000):
            name = str((seed * 7 + step) % 40)
            if step % 3:
                memory.get(name)
            else:
                memory.put(name, name, (step % 50) + 1)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.bytes == sum(slot.size for slot in memory._slots.values()) <= 500
    assert len(memory) <= 20
