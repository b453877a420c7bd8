"""Cache: what goes in comes out, from every tier, and nothing else does."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from hotstart import ArtifactNameError, Cache, Compiled, DeviceClass, Key, UsageError


def key(n: object, **fields: object) -> Key:
    return Key("test", n=n, **fields)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_an_entry_comes_back_whole_from_memory_and_from_disk(root: Path) -> None:
    artifacts = {"cubin": b"\x7fELF" + bytes(1000), "ptx": b"", "sub/dir/ñ": b"1", "large": os.urandom(400_000)}
    meta = {"lowered": {"k<int>": "_Z1kIiEvv"}, "log": "", "flags": (1, [2.5, None]), 3: b"\0", "ok": True}
    with Cache(root) as cache:
        assert cache.put(key(1), artifacts, meta=meta, cost=1.5)  # type: ignore[arg-type]
        remembered = cache.get(key(1))
    with Cache(root, memory=0) as cache:
        found = cache.get(key(1))
    for entry, tier in ((remembered, "memory"), (found, "disk")):
        assert entry is not None
        assert dict(entry.items()) == artifacts
        assert list(entry) == list(artifacts)
        assert all(type(data) is bytes for _, data in entry.items())
        assert entry.meta == meta
        assert type(entry.meta["flags"]) is tuple and type(entry.meta["ok"]) is bool
        assert (entry.cost, entry.tier, entry.kind, entry.name) == (1.5, tier, "test", "")
        assert entry.provenance["producer"].startswith("hotstart ")
        assert abs(time.time_ns() - entry.created) < 60e9


def test_an_empty_entry_is_a_hit(root: Path) -> None:
    for memory in (0, "1MiB"):
        with Cache(root, memory=memory) as cache:
            cache.put(key("empty"), {})
            found = cache.get(key("empty"))
            assert found is not None and bool(found) and len(found) == 0


def test_what_is_returned_cannot_change_what_is_stored(root: Path) -> None:
    with Cache(root) as cache:
        buffer = bytearray(b"abc")
        cache.put(key(1), {"x": buffer}, meta={"list": [1]})
        buffer[0] = 0
        first = cache.get(key(1))
        assert first is not None
        first.meta["list"].append(2)
        second = cache.get(key(1))
        assert second is not None and second["x"] == b"abc" and second.meta == {"list": [1]}


def test_the_last_put_wins(root: Path) -> None:
    with Cache(root, memory=0) as cache:
        for text in (b"one", bytes(300_000), b"three"):
            cache.put(key(1), {"x": text})
            found = cache.get(key(1))
            assert found is not None and found["x"] == text
        assert len(cache) == 1


@pytest.mark.parametrize("name", ["", "..", "../x", "a/../b", "/abs", "a//b", "a\0b", ".", "a\\..\\b", "x" * 5000, 3])
def test_names_that_could_leave_their_directory_are_refused(root: Path, name: Any) -> None:
    cache = Cache(root)
    with pytest.raises(ArtifactNameError):
        cache.put(key(1), {name: b""})
    with pytest.raises(ArtifactNameError):
        cache.get_or_compile(key(2), lambda: {name: b""})
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("artifacts", "options"),
    [
        ({"x": "text"}, {}),
        ({"x": b""}, {"cost": -1}),
        ({"x": b""}, {"cost": float("nan")}),
        ({"x": b""}, {"meta": {"f": object()}}),
        ({"x": b""}, {"meta": {"f": slice(1)}}),
    ],
)
def test_misuse_raises_before_anything_is_written(root: Path, artifacts: Any, options: Any) -> None:
    cache = Cache(root)
    with pytest.raises(UsageError):
        cache.put(key(1), artifacts, **options)
    assert len(cache) == 0


def test_machine_code_under_a_key_for_any_device_is_refused(root: Path) -> None:
    cache = Cache(root)
    anywhere = key(1, device=DeviceClass.cuda_any("ptx"))
    with pytest.raises(UsageError, match="machine code"):
        cache.put(anywhere, {"payload": b"\x7fELF\x02"})
    assert cache.put(anywhere, {"payload": b".version 8.8"})


def test_artifacts_shared_by_entries_are_kept_once(root: Path) -> None:
    shared = os.urandom(500_000)
    with Cache(root) as cache:
        for n in range(5):
            cache.put(key(n), {"lib": shared, "own": bytes([n])})
        assert len(list((root / "blobs").rglob("*/*/*"))) == 1
        assert cache.stats()["bytes"] < 600_000
        for n in range(4):
            cache.delete(key(n))
        cache.gc()
        found = cache.get(key(4))
        assert found is not None and found["lib"] == shared
        cache.delete(key(4))
        cache.gc()
        assert not list((root / "blobs").rglob("*/*/*"))
        assert cache.stats()["bytes"] == 0


def test_get_or_compile_compiles_once_and_says_so(root: Path) -> None:
    calls = []

    def make() -> Compiled:
        calls.append(1)
        return Compiled({"x": b"1"}, meta={"log": "warn"}, cost=7.0)

    with Cache(root) as cache:
        first = cache.get_or_compile(key(1), make, meta={"by": "me"})
        second = cache.get_or_compile(key(1), make)
    with Cache(root) as cache:
        third = cache.get_or_compile(key(1), make)
    assert len(calls) == 1
    assert [entry.tier for entry in (first, second, third)] == ["compiled", "memory", "disk"]
    assert {entry.cost for entry in (first, second, third)} == {7.0}
    assert all(entry.meta == {"by": "me", "log": "warn"} for entry in (first, second, third))


def test_an_exception_in_compile_is_not_cached(root: Path) -> None:
    cache = Cache(root)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_compile(key(1), lambda: {"x": bytes(1 // 0)})
    assert cache.get_or_compile(key(1), lambda: {"x": b"1"})["x"] == b"1"
    assert cache.get(key(1)) is not None


def test_layers_are_read_in_order_and_hits_are_promoted(root: Path, tmp_path: Path) -> None:
    for name, text in (("one", b"1"), ("two", b"2")):
        with Cache(tmp_path / name) as layer:
            layer.put(key("both"), {"x": text}, meta={"layer": name}, cost=3.0)
            layer.put(key(name), {"x": text, "large": bytes(300_000)})
    under = [tmp_path / "one", tmp_path / "two"]
    before = {path: path.stat().st_mtime_ns for layer in under for path in layer.rglob("*")}
    with Cache(root, under=under, memory=0) as cache:
        both = cache.get(key("both"))
        assert both is not None and (both["x"], both.tier) == (b"1", "layer")
        two = cache.get(key("two"))
        assert two is not None and two["large"] == bytes(300_000)
        assert cache.stats()["hits"] == {"memory": 0, "disk": 0, "layer": 2, "flight": 0}
    assert {path: path.stat().st_mtime_ns for layer in under for path in layer.rglob("*")} == before
    with Cache(root, memory=0) as cache:
        promoted = cache.get(key("both"))
        assert promoted is not None
        assert (promoted.meta, promoted.cost, promoted.created) == ({"layer": "one"}, 3.0, both.created)
        found = cache.get(key("two"))
        assert found is not None and found["large"] == bytes(300_000)


def test_old_entries_expire(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    with Cache(root, ttl=100, memory=0) as cache:
        cache.put(key(1), {"x": b"1"})
        assert cache.get(key(1)) is not None
        monkeypatch.setattr("hotstart.store.local.time_ns", lambda: now + int(200e9))
        assert cache.get(key(1)) is None
        assert cache.stats()["expired"] == 1
        monkeypatch.setattr("hotstart.store.gc.time.time_ns", lambda: now + int(200e9))
        assert cache.gc()["entries"] == 1
        assert len(cache) == 0


def test_gc_by_age_and_size_and_without_doing_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(root, memory=0, policy="lru") as cache:
        with monkeypatch.context() as an_hour_ago:
            an_hour_ago.setattr("hotstart.store.local.time_ns", lambda: time.time_ns() - int(3600e9))
            for n in range(4):
                cache.put(key(n), {"x": bytes(1000)}, cost=2.0)
        for file in (root / "entries").rglob("?" * 62):
            os.utime(file, (time.time() - 3600,) * 2)
        for n in range(4, 10):
            cache.put(key(n), {"x": bytes(1000)}, cost=2.0)
        cache.get(key(3))
        assert cache.gc(older_than=1800, dry_run=True)["entries"] == 3
        assert len(cache) == 10
        report = cache.gc(older_than=1800)
        assert (report["entries"], report["seconds"]) == (3, 6.0)
        assert [n for n in range(10) if key(n) in cache] == list(range(3, 10))
        would = cache.gc(max_size=3000, dry_run=True)
        assert cache.gc(max_size=3000) == would
        assert [n for n in range(10) if key(n) in cache] == [3, 9]
        cache.gc(max_size=0)
        assert len(cache) == 0
    with pytest.raises(UsageError):
        cache.gc(older_than=-1)


def test_clear_and_delete(root: Path) -> None:
    with Cache(root) as cache:
        for n in range(5):
            cache.put(key(n), {"x": bytes(300_000 + n)})
        assert cache.delete(key(0))
        assert not cache.delete(key(0))
        assert cache.get(key(0)) is None
        cache.clear()
        assert len(cache) == 0
        assert cache.stats()["bytes"] == 0
        assert all(cache.get(key(n)) is None for n in range(5))
        assert cache.put(key(1), {"x": b"again"})
        assert len(cache) == 1


def test_explain_names_what_changed(root: Path) -> None:
    with Cache(root) as cache:
        for threads in (2, 4):
            cache.put(Key("torch", name="gpt", threads=threads, torch="2.13.0", source="a" * 500), {})
        cache.put(Key("torch", name="other", threads=1, torch="2.13.0"), {})
        known = Key("torch", name="gpt", threads=2, torch="2.13.0", source="a" * 500)
        assert cache.explain(known).status == "hit"
        changed = cache.explain(Key("torch", name="gpt", threads=1, torch="2.13.0", source="a" * 500))
        assert changed.changed == {"threads": ("4", "1")}
        assert str(changed) == "torch gpt: threads 4 → 1"
        edited = cache.explain(Key("torch", name="gpt", threads=2, torch="2.13.0", source="b" * 500, new=1))
        assert set(edited.changed) == {"source", "new"}
        assert edited.changed["new"] == (None, "1")
        assert str(cache.explain(Key("torch", name="unheard"))) == "torch unheard: never seen"
    assert Cache(None).explain(known).status == "never seen"


def test_a_cache_in_memory_alone(root: Path) -> None:
    cache = Cache(None)
    assert cache.put(key(1), {"x": b"1"})
    found = cache.get(key(1))
    assert found is not None and found["x"] == b"1"
    assert key(1) in cache and len(cache) == 1
    assert cache.get_or_compile(key(2), lambda: {"x": b"2"})["x"] == b"2"
    off = Cache(None, memory=0)
    assert not off.put(key(1), {"x": b"1"})
    assert off.get_or_compile(key(1), lambda: {"x": b"2"})["x"] == b"2"


def test_verify_reads_everything(root: Path) -> None:
    with Cache(root) as cache:
        for n in range(6):
            cache.put(key(n), {"x": bytes([n]) * 1000, "large": bytes([n]) * 300_000})
        assert len(cache.verify()["ok"]) == 6
        path = Path(cache._disk.path(key(0).digest))  # type: ignore[union-attr]
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        blob = next((root / "blobs").rglob("*/*/*"))
        blob.write_bytes(b"!" + blob.read_bytes()[1:])
        report = cache.verify()
        assert len(report["damaged"]) + len(report["ok"]) == 6
        assert key(0).digest in report["damaged"]
        assert 1 <= len(report["damaged"]) <= 2
        assert not cache.verify()["damaged"]
        assert list((root / "quarantine").iterdir())
