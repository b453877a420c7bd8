"""A compile that begins in one call and ends in another: waited for, finished, abandoned, forgotten, forked away."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hotstart
from hotstart.store.entry import Entry
from hotstart.store.flight import Pending

KEY = hotstart.Key("test", name="k", source="1")


def begin(cache: hotstart.Cache, key: hotstart.Key = KEY, wait: float = 60) -> Pending:
    pending = cache.begin(key, wait=wait)
    assert isinstance(pending, Pending)
    return pending


def locks(cache: hotstart.Cache) -> dict[str, int]:
    """Lock files by name, with their sizes: a size above zero is the mark of a failure."""
    found = Path(cache.path or "") / "flights"
    return {item.name: item.stat().st_size for item in found.iterdir()}


def test_what_was_finished_is_an_entry_and_its_cost_the_time_between(tmp_path: Path) -> None:
    cache = hotstart.Cache(tmp_path)
    pending = begin(cache)
    assert pending.finish({"cubin": b"code"}, meta={"a": 1})
    entry = cache.begin(KEY)
    assert isinstance(entry, Entry)
    assert entry["cubin"] == b"code"
    assert entry.meta == {"a": 1}
    assert entry.cost > 0
    assert locks(cache) == {}
    assert cache.stats()["compiled"] == 1


def test_ending_twice_does_nothing(tmp_path: Path) -> None:
    cache = hotstart.Cache(tmp_path)
    pending = begin(cache)
    assert pending.finish({"cubin": b"first"})
    assert not pending.finish({"cubin": b"second"})
    pending.abandon()
    entry = cache.get(KEY)
    assert entry is not None
    assert entry["cubin"] == b"first"


def test_a_thread_waits_for_what_another_thread_begun(tmp_path: Path) -> None:
    cache = hotstart.Cache(tmp_path, memory=0)
    pending = begin(cache)
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(cache.begin(KEY, wait=60)))
    waiter.start()
    waiter.join(0.1)
    assert waiter.is_alive()
    pending.finish({"cubin": b"code"})
    waiter.join(60)
    assert found[0]["cubin"] == b"code"
    assert cache.stats()["hits"]["flight"] == 1


def test_a_process_waits_for_what_another_process_begun(tmp_path: Path, fork: Callable[..., Any]) -> None:
    cache = hotstart.Cache(tmp_path, memory=0)
    pending = begin(cache)

    def other() -> str:
        entry = hotstart.Cache(tmp_path, memory=0).begin(KEY, wait=60)
        return entry["cubin"].decode() if isinstance(entry, Entry) else "compiled it as well"

    child = fork(other)
    pending.finish({"cubin": b"code"})
    assert child.result() == "code"


def test_get_or_compile_waits_for_it_too(tmp_path: Path) -> None:
    cache = hotstart.Cache(tmp_path, memory=0)
    pending = begin(cache)
    found: list[Entry] = []
    waiter = threading.Thread(target=lambda: found.append(cache.get_or_compile(KEY, dict)))
    waiter.start()
    waiter.join(0.1)
    pending.finish({"cubin": b"code"})
    waiter.join(60)
    assert found[0]["cubin"] == b"code"


def test_abandoned_it_is_marked_so_that_others_compile_at_once(tmp_path: Path) -> None:
    cache = hotstart.Cache(tmp_path)
    begin(cache).abandon()
    assert locks(cache) == {KEY.digest: 1}
    others = [begin(hotstart.Cache(tmp_path)) for _ in range(3)]
    assert others[1].finish({"cubin": b"code"})
    assert cache.get(KEY) is not None


def test_dropped_by_an_exception_it_is_abandoned(tmp_path: Path) -> None:
    cache = hotstart.Cache(tmp_path)

    def fail() -> None:
        pending = begin(cache)
        raise RuntimeError(pending.key)

    with pytest.raises(RuntimeError):
        fail()
    gc.collect()
    assert locks(cache) == {KEY.digest: 1}


def test_misuse_of_finish_raises_and_lets_the_others_go(tmp_path: Path) -> None:
    cache = hotstart.Cache(tmp_path)
    with pytest.raises(hotstart.ArtifactNameError):
        begin(cache).finish({"../x": b""})
    assert locks(cache) == {KEY.digest: 1}


def test_nobody_waits_longer_than_asked(tmp_path: Path) -> None:
    holder, other = hotstart.Cache(tmp_path), hotstart.Cache(tmp_path)
    held = begin(holder)
    begin(other, wait=0.05).abandon()
    assert other.stats()["compiled"] == 0
    assert held.finish({"cubin": b"code"})


def test_the_same_thread_asking_again_compiles(tmp_path: Path) -> None:
    cache = hotstart.Cache(tmp_path)
    outer = begin(cache)
    inner = begin(cache)
    assert inner.finish({"cubin": b"inner"})
    assert outer.finish({"cubin": b"outer"})


def test_a_forked_child_does_not_end_what_its_parent_begun(tmp_path: Path, fork: Callable[..., Any]) -> None:
    cache = hotstart.Cache(tmp_path, memory=0)
    pending = begin(cache)
    # In the child the lock's descriptor is closed and its number free: it must not be written to again.
    victim = tmp_path / "victim"

    def child() -> int:
        fds = [os.open(victim, os.O_RDWR | os.O_CREAT) for _ in range(64)]
        pending.abandon()
        return sum(os.fstat(fd).st_size for fd in fds)

    assert fork(child).result() == 0
    assert locks(cache) == {KEY.digest: 0}
    assert pending.finish({"cubin": b"code"})


def test_a_read_only_store_is_compiled_for_without_a_lock(tmp_path: Path) -> None:
    hotstart.Cache(tmp_path).close()
    cache = hotstart.Cache(tmp_path, read_only=True)
    assert not begin(cache).finish({"cubin": b"code"})
    assert locks(cache) == {}
