"""The contracts of a content store and of a cache, as classes of tests.

Give a factory and pytest does the rest:

    class TestMyStore(ContentStoreConformance):
        def make_store(self, root):
            return MyStore(root)

What is asked here is what callers rely on; how it is done is left open, so a store
that lives elsewhere can certify itself. ``damage`` is the one thing a suite cannot
do from outside: override it where files are not under ``root``.
"""

from __future__ import annotations

import io
import os
import random
import threading
from pathlib import Path

import pytest

from ..cache import Cache
from ..errors import AddressError, ArtifactNameError, UsageError
from ..keys.digest import digest_of
from ..keys.key import Key
from ..store.content import ContentStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIZES = (0, 1, 63, 64, 1000, 4096, 70_000, 300_000, 3_000_000)

BAD_ADDRESSES: list[Any] = [
    "", "abc", "g" * 64, "A" * 64, "0" * 63, "0" * 65, "../" + "0" * 61, "0" * 62 + "/0", "0" * 63 + "\n",
    "٠" * 64, b"0" * 64, None, 5,
]  # fmt: skip

NAMES = (
    "a",
    "kernel.so",
    "sub/dir/x.json",
    "Ünïcödé ☃ 漢字",
    "🚀",
    "with space",
    "quote'\"",
    "\ud800",
    "x" * 1000,
    "-",
    "a:b",
)


class _Suite:
    """What both suites share."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return tmp_path / "store"

    def damage(self, root: Path, chance: random.Random) -> int:
        """Flip one bit in every file that holds content; how many there were."""
        count = 0
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.stat().st_size and len(path.name) >= 60:
                data = bytearray(path.read_bytes())
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                path.write_bytes(data)
                count += 1
        return count


class ContentStoreConformance(_Suite):
    """Bytes in, address out, the same bytes back or nothing."""

    def make_store(self, root: Path) -> ContentStore:
        raise NotImplementedError("give a factory: def make_store(self, root): return MyStore(root)")

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("compress", [False, True])
    def test_round_trip(self, root: Path, size: int, compress: bool) -> None:
        store = self.make_store(root)
        for data in (bytes(size), random.Random(size).randbytes(size)):
            address = store.put(data, compress=compress)
            assert address == digest_of(data)
            assert store.get(address) == data
            assert store.size(address) == size
            assert store.exists(address) and address in store
            target = io.BytesIO()
            assert store.copy_to(address, target)
            assert target.getvalue() == data

    @pytest.mark.parametrize("compress", [False, True])
    def test_streams_and_files_are_the_same_content(self, root: Path, tmp_path: Path, compress: bool) -> None:
        store = self.make_store(root)
        data = random.Random(1).randbytes(1_500_000) + bytes(1_500_000)
        (tmp_path / "file").write_bytes(data)
        addresses = {
            store.put_stream(io.BytesIO(data), compress=compress),
            store.put_file(tmp_path / "file", compress=compress),
            store.put(data),
        }
        assert addresses == {digest_of(data)}
        assert len(store) == 1

    @pytest.mark.parametrize("data", [bytearray(b"abc"), memoryview(b"abc"), memoryview(b"aXbXcX")[::2]], ids=str)
    def test_everything_bytes_like_is_content(self, root: Path, data: Any) -> None:
        store = self.make_store(root)
        assert store.get(store.put(data)) == b"abc"

    @pytest.mark.parametrize("data", ["text", None, 5, [1]])
    def test_everything_else_is_refused(self, root: Path, data: Any) -> None:
        with pytest.raises(UsageError, match="bytes-like"):
            self.make_store(root).put(data)

    def test_absent_is_none(self, root: Path) -> None:
        store = self.make_store(root)
        address = digest_of(b"absent")
        assert store.get(address) is None
        assert store.size(address) is None
        assert not store.exists(address)
        assert not store.delete(address)
        assert not store.copy_to(address, io.BytesIO())
        assert store.verify(address) == [address]

    @pytest.mark.parametrize("address", BAD_ADDRESSES, ids=repr)
    def test_malformed_addresses_are_refused_and_never_a_path(self, root: Path, address: Any) -> None:
        store = self.make_store(root)
        store.put(b"something")
        for call in (store.get, store.exists, store.delete, store.size, store.verify):
            if call == store.verify and address is None:
                continue  # None means all of them
            with pytest.raises(AddressError, match="64 lower-case"):
                call(address)
        with pytest.raises(AddressError, match="64 lower-case"):
            store.copy_to(address, io.BytesIO())
        assert len(store) == 1

    def test_putting_again_changes_nothing(self, root: Path) -> None:
        store = self.make_store(root)
        address = store.put(b"once")
        before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
        assert store.put(b"once") == address
        assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == before

    def test_delete_and_iterate(self, root: Path) -> None:
        store = self.make_store(root)
        addresses = {store.put(b"%d" % n) for n in range(50)}
        assert set(store) == addresses
        assert len(store) == 50
        gone = addresses.pop()
        assert store.delete(gone)
        assert not store.delete(gone)
        assert set(store) == addresses

    def test_damage_is_found_set_aside_and_healed(self, root: Path) -> None:
        store = self.make_store(root)
        chance = random.Random(4)
        for _ in range(30):
            data = chance.randbytes(2000)
            address = store.put(data)
            assert self.damage(root, chance) >= 1
            assert store.get(address) is None
            assert not store.exists(address)
            assert store.put(data) == address
            assert store.get(address) == data
            store.delete(address)

    def test_verify_finds_every_damaged_blob(self, root: Path) -> None:
        store = self.make_store(root)
        good = store.put(b"good")
        assert store.verify() == []
        for n in range(5):
            store.put(b"%d" % n * 100)
        self.damage(root, random.Random(2))
        assert len(store.verify()) == 6
        assert store.verify() == []
        assert good not in store

    def test_many_writers_of_the_same_content(self, root: Path) -> None:
        store = self.make_store(root)
        data = [bytes([n]) * 50_000 for n in range(8)]
        wrong: list[object] = []

        def work(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(60):
                item = chance.choice(data)
                try:
                    if store.get(store.put(item)) != item:
                        wrong.append("wrong bytes")
                except Exception as error:
                    wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(store) == len(data)
        assert not list(root.rglob("tmp/*"))


class CacheConformance(_Suite):
    """Entries in, the same entries back or a miss; only misuse raises."""

    def make_store(self, root: Path) -> Cache:
        raise NotImplementedError("give a factory: def make_store(self, root): return MyCache(root)")

    @staticmethod
    def key(n: object) -> Key:
        return Key("conformance", n=n)

    @pytest.mark.parametrize("size", SIZES)
    def test_round_trip(self, root: Path, size: int) -> None:
        data = random.Random(size).randbytes(size)
        with self.make_store(root) as cache:
            assert cache.get(self.key(1)) is None
            assert cache.put(self.key(1), {"x": data, "empty": b""}, meta={"a": [1, (2, None)]}, cost=1.5)
            for _ in range(2):
                found = cache.get(self.key(1))
                assert found is not None
                assert dict(found.items()) == {"x": data, "empty": b""}
                assert (found.meta, found.cost) == ({"a": [1, (2, None)]}, 1.5)

    def test_an_entry_may_be_empty(self, root: Path) -> None:
        with self.make_store(root) as cache:
            assert cache.put(self.key(1), {})
            found = cache.get(self.key(1))
            assert found is not None and found and len(found) == 0

    def test_names_of_any_script(self, root: Path) -> None:
        artifacts = {name: name.encode("utf-8", "surrogatepass") for name in NAMES}
        with self.make_store(root) as cache:
            assert cache.put(self.key(1), artifacts)
            found = cache.get(self.key(1))
            assert found is not None and dict(found.items()) == artifacts

    def test_ten_thousand_artifacts(self, root: Path) -> None:
        artifacts = {f"unit/{n}": b"%d" % n for n in range(10_000)}
        with self.make_store(root) as cache:
            assert cache.put(self.key(1), artifacts)
            found = cache.get(self.key(1))
            assert found is not None and dict(found.items()) == artifacts

    @pytest.mark.parametrize("name", ["", "..", "a/../b", "/a", "a\0b", "./a", "a/", None, 3])
    def test_names_that_leave_are_refused(self, root: Path, name: Any) -> None:
        with self.make_store(root) as cache:
            with pytest.raises(ArtifactNameError):
                cache.put(self.key(1), {name: b""})
            assert cache.get(self.key(1)) is None

    def test_the_last_put_wins(self, root: Path) -> None:
        with self.make_store(root) as cache:
            for data in (b"1", bytes(400_000), b"3"):
                assert cache.put(self.key(1), {"x": data})
                found = cache.get(self.key(1))
                assert found is not None and found["x"] == data

    def test_delete_contains_len_clear(self, root: Path) -> None:
        with self.make_store(root) as cache:
            for n in range(10):
                cache.put(self.key(n), {"x": b"%d" % n})
            assert len(cache) == 10
            assert self.key(3) in cache
            assert cache.delete(self.key(3))
            assert not cache.delete(self.key(3))
            assert self.key(3) not in cache
            assert cache.get(self.key(3)) is None
            assert len(cache) == 9
            cache.clear()
            assert len(cache) == 0
            assert all(cache.get(self.key(n)) is None for n in range(10))

    def test_compile_once(self, root: Path) -> None:
        calls: list[int] = []

        def make() -> dict[str, bytes]:
            calls.append(1)
            return {"x": b"made"}

        with self.make_store(root) as cache:
            entries = [cache.get_or_compile(self.key(1), make) for _ in range(3)]
        assert [entry["x"] for entry in entries] == [b"made"] * 3
        assert entries[0].tier == "compiled" != entries[1].tier
        assert len(calls) == 1

    def test_a_failed_compile_is_not_kept(self, root: Path) -> None:
        with self.make_store(root) as cache:
            with pytest.raises(ZeroDivisionError):
                cache.get_or_compile(self.key(1), lambda: {"x": bytes(1 // 0)})
            assert cache.get(self.key(1)) is None
            assert cache.get_or_compile(self.key(1), lambda: {"x": b"2"})["x"] == b"2"

    def test_one_compile_for_many_threads(self, root: Path) -> None:
        calls: list[int] = []
        go = threading.Barrier(8)
        with self.make_store(root) as cache:

            def work() -> None:
                go.wait(60)
                for n in range(20):
                    entry = cache.get_or_compile(self.key(n), lambda n=n: calls.append(n) or {"x": b"%d" % n})  # type: ignore[misc,func-returns-value]
                    assert entry["x"] == b"%d" % n

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(calls) == list(range(20))

    @pytest.mark.parametrize("what", ["key", None, 5, b"key"])
    def test_what_is_not_a_key_is_refused(self, root: Path, what: Any) -> None:
        with self.make_store(root) as cache, pytest.raises(UsageError):
            cache.get(what)

    def test_every_counter_is_always_there(self, root: Path) -> None:
        with self.make_store(root) as cache:
            before = set(cache.stats())
            cache.put(self.key(1), {})
            cache.get(self.key(1))
            cache.get(self.key(2))
            assert set(cache.stats()) == before
            assert cache.stats()["misses"] == 1


class DiskCacheConformance(CacheConformance):
    """A cache whose entries outlive it, in files under ``root``."""

    def test_what_was_put_is_there_for_the_next(self, root: Path) -> None:
        with self.make_store(root) as cache:
            for n in range(20):
                cache.put(self.key(n), {"x": b"%d" % n, "large": bytes([n]) * 300_000})
        with self.make_store(root) as cache:
            assert len(cache) == 20
            for n in range(20):
                found = cache.get(self.key(n))
                assert found is not None and found["x"] == b"%d" % n and found["large"] == bytes([n]) * 300_000

    def test_damage_is_a_miss_that_heals(self, root: Path) -> None:
        chance = random.Random(9)
        with self.make_store(root) as cache:
            for n in range(30):
                cache.put(self.key(n), {"x": chance.randbytes(500)})
        assert self.damage(root, chance) >= 30
        with self.make_store(root) as cache:
            assert [cache.get(self.key(n)) for n in range(30)] == [None] * 30
            stats = cache.stats()
            assert stats["corrupt"] + stats["other_version"] == stats["misses"] == 30
            assert cache.put(self.key(0), {"x": b"healed"})
            found = cache.get(self.key(0))
            assert found is not None and found["x"] == b"healed"

    def test_large_artifacts_are_kept_once(self, root: Path) -> None:
        large = random.Random(3).randbytes(2_000_000)
        with self.make_store(root) as cache:
            for n in range(4):
                assert cache.put(self.key(n), {"large": large, "again": large, "own": b"%d" % n})
            assert sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) < 1.5 * len(large)
            assert cache.delete(self.key(0))
            cache.gc()
            for n in range(1, 4):
                found = cache.get(self.key(n))
                assert found is not None and found["large"] == found["again"] == large

    #: Whether to put a gigabyte through; it takes some ten seconds.
    gigabyte = False

    def test_a_gigabyte(self, root: Path) -> None:
        if not self.gigabyte:
            pytest.skip("set gigabyte = True in the class to put a gigabyte through")
        room = os.statvfs(root.parent)
        memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if room.f_bavail * room.f_frsize < 4 << 30 or memory < 6 << 30:
            pytest.skip("needs 4 GiB of disk and 6 GiB of memory free")
        data = random.Random(0).randbytes(1 << 20) * 1024
        with self.make_store(root) as cache:
            assert cache.put(self.key(1), {"x": data})
            found = cache.get(self.key(1))
            assert found is not None and found["x"] == data
            cache.clear()
