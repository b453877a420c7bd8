"""Single faults with a known bad ending: each of these once cost an entry, a promise or the patience of a caller."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from hotstart import Cache, Key
from hotstart.store import ledger
from hotstart.testing import FailingIO, audit


def key(n: int) -> Key:
    return Key("escape", n=n)


def put_all(cache: Cache, count: int, size: int = 100) -> None:
    for n in range(count):
        assert cache.put(key(n), {"x": b"%d" % n * size, "blob": b"shared" * 2000})


@pytest.fixture
def root(swift_path: Path, small_blobs: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOTSTART_LOG", "off")
    return swift_path / "store"


@pytest.mark.parametrize("error", [errno.EROFS, errno.EPERM, errno.EACCES])
def test_a_store_that_became_read_only_still_serves(root: Path, error: int) -> None:
    """A use that cannot be recorded is no reason for a miss."""
    with Cache(root, memory=0) as cache:
        put_all(cache, 3)
        with FailingIO(error, at=1, onwards=True, only=("utime", "write", "writev", "pwrite", "rename", "unlink")):
            assert all(cache.get(key(n)) is not None for n in range(3))
        assert cache.stats()["errors"][f"touch.{errno.errorcode[error]}"] == 3


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ENOMEM])
def test_a_blob_that_cannot_be_opened_now_is_not_damaged(root: Path, error: int) -> None:
    """Out of descriptors is a bad moment, not a bad entry."""
    with Cache(root, memory=0) as cache:
        put_all(cache, 3)
        with FailingIO(error, at=2, onwards=True, only=("open",)):
            assert cache.get(key(0)) is None
        assert cache.get(key(0)) is not None
        assert cache.stats()["corrupt"] == 0


@pytest.mark.parametrize("call", ["scandir", "open", "stat", "pread"])
@pytest.mark.parametrize("sqlite", [True, False], ids=["with sqlite", "without"])
def test_a_walk_that_cannot_see_everything_removes_nothing(root: Path, call: str, sqlite: bool) -> None:
    """What a walk does not see it must not take for gone: its blobs would be collected."""
    with Cache(root, memory=0) as cache:
        put_all(cache, 6)
    only = (call,) if sqlite else (call, "sqlite")
    for at in range(1, 60):
        (root / "ledger").unlink(missing_ok=True)
        (root / "index.sqlite").unlink(missing_ok=True)
        with Cache(root, memory=0) as cache, FailingIO(errno.EMFILE, at=at, onwards=True, only=only):
            len(cache)
            cache.gc()
        with Cache(root, memory=0) as cache:
            assert all(cache.get(key(n)) is not None for n in range(6)), f"lost by {call} failing from {at} on"


def test_pins_that_cannot_be_read_stop_eviction(root: Path) -> None:
    with Cache(root, memory=0, max_size=30_000, policy="lru") as cache:
        put_all(cache, 2)
        assert cache.pin(key(0))
        with FailingIO(errno.EIO, at=1, onwards=True, only=("listdir",)):
            for n in range(10, 40):
                cache.put(key(n), {"x": b"%d" % n * 1000})
        assert cache.get(key(0)) is not None, "evicted although pinned"


def test_a_ledger_cut_between_two_records_is_noticed(root: Path) -> None:
    with Cache(root, memory=0) as cache:
        put_all(cache, 4)
    data = (root / "ledger").read_bytes()
    first = ledger._FIRST
    length, _ = ledger._RECORD.unpack_from(data, first)
    os.truncate(root / "ledger", first + ledger._RECORD.size + length)
    with Cache(root, memory=0) as cache:
        cache.gc()
        assert (cache.stats()["entries"], cache.stats()["bytes"]) == (4, audit(root).bytes)


def test_a_put_that_fails_over_an_entry_leaves_the_accounts_no_lower(root: Path) -> None:
    """The larger old entry is still there, whatever the record of the smaller new one says."""
    with Cache(root, memory=0) as cache:
        assert cache.put(key(0), {"x": bytes(4000)})
        with FailingIO(errno.ENOSPC, at=1, only=("rename",)):
            assert not cache.put(key(0), {"x": bytes(10)})
        known = ledger.Ledger(f"{root}/ledger").peek()
        assert known is None or known[1] >= audit(root).bytes
        entry = cache.get(key(0))
        assert entry is not None and len(entry["x"]) == 4000
        assert cache.put(key(0), {"x": bytes(10)})
        cache.gc()
        assert cache.stats()["bytes"] == audit(root).bytes


def test_a_directory_that_cannot_be_synced_does_not_unaccount_an_entry(root: Path) -> None:
    with Cache(root, memory=0, durable=True) as cache:
        put_all(cache, 2)
        for at in range(1, 8):
            with FailingIO(errno.EIO, at=at, only=("fsync",)):
                cache.put(key(at + 10), {"x": b"new", "blob": b"%d" % at * 5000})
            known = ledger.Ledger(f"{root}/ledger").peek()
            assert known is None or known[1] >= audit(root).bytes


def test_a_name_that_is_no_text_survives_a_rebuild(root: Path) -> None:
    """Lone surrogates come from file names; SQLite does not take them."""
    names = ["\udc80odd", "Ünïcödé", "🚀", "x" * 70_000]
    with Cache(root, memory=0) as cache:
        for name in names:
            assert cache.put(Key("escape", name=name), {"x": b"1"})
        cache.gc()
    (root / "index.sqlite").unlink()
    (root / "ledger").unlink()
    with Cache(root, memory=0) as cache:
        assert len(cache) == len(names)
        for name in names:
            assert cache.get(Key("escape", name=name)) is not None
            assert "changed" in cache.explain(Key("escape", name=name, extra=1)).status or len(name) > 60_000


def test_a_head_that_claims_gigabytes_costs_no_memory(root: Path) -> None:
    with Cache(root, memory=0) as cache:
        assert cache.put(key(0), {"x": b"1"})
        digest = key(0).digest
        path = root / "entries" / digest[:2] / digest[2:]
        data = bytearray(path.read_bytes())
        data[76:84] = b"\xff\xff\xff\x7f" * 2  # the lengths of table and about
        for limit in range(70, 90):
            changed = bytearray(path.read_bytes()) if path.exists() else data
            changed[limit] = 0x7F
            path.write_bytes(changed)
            with FailingIO() as io:
                assert cache.get(key(0)) is None
                cache.verify()
                (root / "ledger").unlink(missing_ok=True)
                assert len(cache) <= 1
            assert io.log
            assert cache.put(key(0), {"x": b"1"})


def test_a_store_copied_over_another_finds_out(root: Path, swift_path: Path) -> None:
    """An index of another state of the store has missed changes: it must not be believed."""
    with Cache(root, memory=0) as cache:
        put_all(cache, 4)
        cache.gc()
    shutil.copy(root / "index.sqlite", swift_path / "old index")
    with Cache(root, memory=0) as cache:
        for n in range(10, 30):
            assert cache.put(key(n), {"x": b"%d" % n})
        cache.gc()
    shutil.copy(swift_path / "old index", root / "index.sqlite")
    with Cache(root, memory=0) as cache:
        assert len(cache.digests()) == 24
        assert cache.stats()["bytes"] == audit(root).bytes


def test_memory_never_serves_what_was_replaced_by_something_larger(root: Path) -> None:
    with Cache(root, memory=10_000) as cache:
        assert cache.put(key(0), {"x": b"old"})
        assert cache.put(key(0), {"x": b"new" * 10_000})  # larger than the whole memory tier
        entry = cache.get(key(0))
        assert entry is not None and entry["x"] == b"new" * 10_000


@pytest.mark.parametrize("on_disk", [True, False])
def test_memory_does_not_outlive_the_time_to_live(root: Path, on_disk: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(root if on_disk else None, ttl=600) as cache:
        assert cache.put(key(0), {"x": b"1"})
        assert cache.get(key(0)) is not None
        for module in ("memory", "local"):
            monkeypatch.setattr(f"hotstart.store.{module}.time_ns", lambda: time.time_ns() + 601 * 10**9)
        assert cache.get(key(0)) is None
        assert cache.stats()["hits"]["memory"] == 1


def test_a_thread_that_cannot_lock_leaves_the_lock_to_others(root: Path) -> None:
    """An error in taking or giving back the lock must not leave it taken."""
    with Cache(root, memory=0) as cache:
        for at in range(1, 4):
            for call in ("flock", "open", "fstat", "pread"):
                with FailingIO(errno.EIO, at=at, onwards=True, only=(call,)):
                    cache.put(key(at), {"x": b"1"})
                assert cache.put(key(at), {"x": b"1"}), f"{call} failing from {at} on: {cache.stats()}"


def test_an_interrupted_turn_leaves_no_transaction(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open transaction would lock every other process out of the index."""
    with Cache(root, memory=0) as cache, Cache(root, memory=0) as other:
        put_all(cache, 3)
        cache.gc()
        assert cache.disk is not None
        store = cache.disk

        def interrupt(_room: object) -> None:
            raise KeyboardInterrupt

        assert store.acquire()
        with pytest.raises(KeyboardInterrupt):
            store.upkeep.with_index(interrupt)
        store.ledger.release()
        assert len(other.digests()) == 3
        assert other.stats()["index_rebuilt"] == 0
        assert len(cache.digests()) == 3
