"""Entries share blobs: putting, referring to and collecting one at the same time must not race.

Protects: an entry that ``get`` returns is whole; an entry whose put returned True does
not lose a blob to somebody else's collection; an eviction under a reader is a miss,
not damage.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hotstart import Cache, ContentStore, Key
from hotstart.testing import audit

if TYPE_CHECKING:
    from tests.conftest import Child

PROCESSES, THREADS = 4, 3
BLOBS = [bytes([letter]) * 8000 for letter in b"abcdef"]


def key(n: int) -> Key:
    return Key("blobs", n=n)


def content(n: int) -> dict[str, bytes]:
    """Two of the six blobs, and something of its own."""
    return {"one": BLOBS[n % 6], "own": b"%d " % n * 20, "two": BLOBS[(n // 6 + n + 1) % 6]}


def in_threads(count: int, work: Callable[[int], None]) -> list[str]:
    """Run ``work(number)`` in so many threads; what they raised."""
    raised: list[str] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            raised.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def hammer(root: Path, cap: int, seed: int, rounds: int) -> dict[str, Any]:
    cache = Cache(root, max_size=cap, memory=0, policy=("lru", "cost")[seed % 2])
    whole = [0] * THREADS

    def work(number: int) -> None:
        chance = random.Random(seed * 100 + number)
        for _ in range(rounds):
            n = chance.randrange(40)
            if chance.random() < 0.5:
                cache.put(key(n), content(n), cost=chance.random())
            entry = cache.get(key(n))
            if entry is not None:
                assert dict(entry.items()) == content(n), f"entry {n} is not whole"
                whole[number] += 1

    raised = in_threads(THREADS, work)
    return {"raised": raised, "whole": sum(whole), "stats": cache.stats()}


def test_under_constant_collection_what_is_returned_is_whole(
    swift_path: Path, small_blobs: int, fork: Callable[..., Child], scale: int
) -> None:
    """A cap that holds a few entries: every other put collects blobs that others are about to share."""
    root, cap = swift_path / "store", 45_000
    Cache(root).close()
    results = [child.result() for child in [fork(hammer, root, cap, seed, 250 * scale) for seed in range(PROCESSES)]]
    assert [problem for result in results for problem in result["raised"]] == []
    assert sum(result["whole"] for result in results) > 100, "hardly anything was ever read: nothing was tested"
    assert sum(result["stats"]["evicted"] for result in results) > 100, "nothing was collected: nothing was tested"
    assert [result["stats"]["corrupt"] for result in results] == [0] * PROCESSES, "an eviction was taken for damage"
    assert [result["stats"]["errors"] for result in results] == [{}] * PROCESSES
    with Cache(root, max_size=cap, memory=0) as cache:
        assert cache.verify()["damaged"] == []
        cache.gc()
        stats, truth = cache.stats(), audit(root)
        assert (stats["entries"], stats["bytes"]) == (truth.entries, truth.bytes)
        assert truth.bytes <= cap
        assert truth.temporary == []


def keep_own(root: Path, worker: int, rounds: int) -> dict[str, Any]:
    """Each thread puts, reads and deletes keys that nobody else touches; only the blobs are everybody's."""
    cache = Cache(root, memory=0)

    def work(number: int) -> None:
        chance = random.Random(worker * 100 + number)
        for count in range(rounds):
            n = (worker * THREADS + number) * 1000 + count % 3
            assert cache.put(key(n), content(n)), f"put says no: {cache.stats()}"
            entry = cache.get(key(n))
            assert entry is not None, f"entry {n} was lost right after its put: {cache.stats()}"
            assert dict(entry.items()) == content(n)
            if chance.random() < 0.7:
                assert cache.delete(key(n))
            if count % 8 == number:
                cache.gc()

    return {"raised": in_threads(THREADS, work), "corrupt": cache.stats()["corrupt"]}


def test_a_blob_found_in_place_is_kept_alive_by_whoever_refers_to_it(
    swift_path: Path, small_blobs: int, fork: Callable[..., Child], monkeypatch: pytest.MonkeyPatch, scale: int
) -> None:
    """No eviction is due, but blobs become loose and are collected all the time: no promised entry may lose one."""
    monkeypatch.setattr("hotstart.store.ledger.LOCK_WAIT", 30.0)  # so that no put is dropped for want of its turn
    root = swift_path / "store"
    Cache(root).close()
    results = [child.result() for child in [fork(keep_own, root, n, 40 * scale) for n in range(PROCESSES)]]
    assert results == [{"raised": [], "corrupt": 0}] * PROCESSES
    with Cache(root, memory=0) as cache:
        assert cache.verify()["damaged"] == []


def test_a_reader_never_misses_an_entry_that_is_replaced_under_it(swift_path: Path, small_blobs: int) -> None:
    """Two versions of one entry, each with a blob of its own that goes when the other comes."""
    root = swift_path / "store"
    versions = [{"blob": BLOBS[n], "n": b"%d" % n} for n in range(2)]
    writer, reader = Cache(root, memory=0), Cache(root, memory=0)
    assert writer.put(key(0), versions[0])
    done = threading.Event()

    def replace() -> None:
        for count in range(150):
            assert writer.put(key(0), versions[count % 2])
            writer.gc(max_size="1GiB")  # collects the blob that has just become loose
        done.set()

    def read() -> None:
        while not done.is_set():
            entry = reader.get(key(0))
            assert entry is not None, f"a miss although the key was always there: {reader.stats()}"
            assert dict(entry.items()) in versions

    def run(number: int) -> None:
        try:
            (replace, read)[number]()
        finally:
            done.set()

    assert in_threads(2, run) == []
    assert reader.stats()["corrupt"] == 0
    writer.close()
    reader.close()


def put_and_delete(root: Path, seed: int, rounds: int) -> dict[str, Any]:
    store = ContentStore(root)
    seen = [0] * THREADS

    def work(number: int) -> None:
        chance = random.Random(seed * 100 + number)
        for _ in range(rounds):
            data = chance.choice(BLOBS)
            address = store.put(data)
            got = store.get(address)
            if got is not None:
                assert got == data
                seen[number] += 1
            if chance.random() < 0.4:
                store.delete(address)

    return {"raised": in_threads(THREADS, work), "seen": sum(seen)}


def test_concurrent_puts_and_deletes_of_the_same_content(
    swift_path: Path, fork: Callable[..., Child], scale: int
) -> None:
    root = swift_path / "blobs"
    ContentStore(root)
    results = [child.result() for child in [fork(put_and_delete, root, n, 200 * scale) for n in range(PROCESSES)]]
    assert [problem for result in results for problem in result["raised"]] == []
    assert sum(result["seen"] for result in results) > 200
    store = ContentStore(root)
    assert store.verify() == []
    assert not any((root / "tmp").iterdir())
