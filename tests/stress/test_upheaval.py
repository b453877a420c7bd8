"""The ground gives way under running processes: index, ledger or the whole store go, or a holder is stopped.

Protects contracts 2 and 4: everybody goes on, nobody waits for ever, the store heals.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hotstart import Cache, Key
from hotstart.testing import SlowIO, audit, open_descriptors

if TYPE_CHECKING:
    from tests.conftest import Child

PROCESSES = 4


def key(n: int) -> Key:
    return Key("upheaval", n=n)


def content(n: int) -> dict[str, bytes]:
    return {"small": b"%d " % n * 50, **({"blob": b"%d" % (n % 4) * 9000} if n % 2 else {})}


def put_and_get(root: Path, first: int, count: int) -> dict[str, Any]:
    """Put own entries, read those of all; which puts said yes, and what went wrong."""
    chance = random.Random(first)
    cache = Cache(root, memory=0)
    stored, wrong = [], []
    for n in range(first, first + count):
        try:
            if cache.put(key(n), content(n)):
                stored.append(n)
            for seen in (n, chance.randrange(first + count)):
                entry = cache.get(key(seen))
                if entry is not None and dict(entry.items()) != content(seen):
                    wrong.append(f"wrong bytes for {seen}")
            if n % 20 == 0:
                cache.gc()
                cache.stats()
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
    return {"stored": stored, "wrong": wrong}


def while_running(children: list[Child], upset: Callable[[], None]) -> list[dict[str, Any]]:
    """Upset the store again and again until all children are done."""
    results = []
    for child in children:
        while child.is_running():
            upset()
            time.sleep(0.005)
        results.append(child.result())
    return results


@pytest.mark.parametrize("names", [("index.sqlite",), ("ledger",), ("index.sqlite", "ledger")], ids=" and ".join)
@pytest.mark.parametrize("how", ["deleted", "overwritten"])
def test_accounts_lost_while_four_processes_work(
    swift_path: Path, small_blobs: int, fork: Callable[..., Child], names: tuple[str, ...], how: str, scale: int
) -> None:
    root = swift_path / "store"
    Cache(root).close()
    chance = random.Random(how)

    def upset() -> None:
        for name in names:
            with contextlib.suppress(OSError):
                if how == "deleted":
                    (root / name).unlink()
                else:
                    (root / name).write_bytes(chance.randbytes(chance.randrange(1, 9000)))

    children = [fork(put_and_get, root, n * 10_000, 80 * scale) for n in range(PROCESSES)]
    results = while_running(children, upset)
    assert [problem for result in results for problem in result["wrong"]] == []
    with Cache(root, memory=0) as cache:
        for result in results:
            for n in result["stored"]:
                entry = cache.get(key(n))
                assert entry is not None, f"entry {n} was promised and is lost: {cache.stats()}"
                assert dict(entry.items()) == content(n)
        cache.gc()
        stats, truth = cache.stats(), audit(root)
        assert (stats["entries"], stats["bytes"]) == (truth.entries, truth.bytes)
        assert truth.temporary == []


def test_a_store_removed_under_running_processes_heals(
    swift_path: Path, small_blobs: int, fork: Callable[..., Child], scale: int
) -> None:
    root = swift_path / "store"
    Cache(root).close()
    children = [fork(put_and_get, root, n * 10_000, 150 * scale) for n in range(PROCESSES)]
    results = while_running(children, lambda: shutil.rmtree(root, ignore_errors=True))
    assert [problem for result in results for problem in result["wrong"]] == []
    cache = Cache(root, memory=0)
    assert cache.put(key(1), content(1)), cache.stats()
    assert cache.get(key(1)) is not None
    cache.gc()
    stats, truth = cache.stats(), audit(root)
    assert (stats["entries"], stats["bytes"]) == (truth.entries, truth.bytes)


@pytest.mark.parametrize("memory", [0, "1MiB"])
def test_an_open_cache_survives_the_removal_of_its_store(swift_path: Path, small_blobs: int, memory: int | str) -> None:
    root = swift_path / "store"
    before = open_descriptors()
    cache = Cache(root, memory=memory, max_size=60_000)
    for turn in range(5):
        for n in range(10):
            assert cache.put(key(n), content(n)), (turn, cache.stats())
            assert cache.get_or_compile(key(100 + n), lambda n=n: content(100 + n)) is not None  # type: ignore[misc]
        shutil.rmtree(root)
        entry = cache.get(key(1))
        assert entry is None or (entry.tier == "memory" and dict(entry.items()) == content(1))
        assert cache.get_or_compile(key(500 + turn), lambda: {"x": b"made"})["x"] == b"made"
        assert len(cache) <= 1
        cache.gc()
        cache.verify()
        assert (root / "format").exists(), "what was made anew is no store"
    assert cache.stats()["bytes"] == audit(root).bytes
    cache.close()
    assert open_descriptors() <= before


def hold_the_lock(root: Path, ready: Path) -> None:
    cache = Cache(root)
    assert cache.disk is not None and cache.disk.ledger.acquire(5)
    ready.touch()
    time.sleep(600)


def test_a_stopped_holder_costs_others_their_puts_and_nothing_else(
    swift_path: Path, fork: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in a debugger, swapped out: a put is dropped when its turn does not come, a get needs no turn."""
    monkeypatch.setattr("hotstart.store.ledger.LOCK_WAIT", 0.2)
    root, ready = swift_path / "store", swift_path / "ready"
    cache = Cache(root, memory=0)
    assert cache.put(key(1), content(1))
    holder = fork(hold_the_lock, root, ready)
    while not ready.exists():
        time.sleep(0.01)
    holder.send(signal.SIGSTOP)
    assert not cache.put(key(2), content(2))
    assert cache.stats()["refused"] == {"locked": 1}
    assert cache.get(key(1)) is not None
    assert cache.get_or_compile(key(3), lambda: {"x": b"3"})["x"] == b"3"
    assert not cache.delete(key(1))
    cache.clear()
    cache.gc()
    assert cache.get(key(1)) is not None
    holder.send(signal.SIGCONT)
    holder.kill()
    assert cache.put(key(2), content(2))
    assert audit(root).temporary == []


def test_a_slow_disk_changes_nothing_but_the_time(
    swift_path: Path, small_blobs: int, fork: Callable[..., Child]
) -> None:
    """Every call takes longer, so processes meet in the middle of everything."""
    root = swift_path / "store"
    Cache(root).close()

    def slowly(first: int) -> dict[str, Any]:
        with SlowIO(0.0002) as io:
            answer = put_and_get(root, first, 8)
        assert io.calls > 100
        return answer

    results = [child.result() for child in [fork(slowly, n * 10_000) for n in range(PROCESSES)]]
    assert [problem for result in results for problem in result["wrong"]] == []
    with Cache(root, memory=0) as cache:
        assert all(cache.get(key(n)) is not None for result in results for n in result["stored"])
        assert sum(len(result["stored"]) for result in results) > 0
