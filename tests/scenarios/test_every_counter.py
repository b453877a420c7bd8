"""One life of a cache, step by step, asserting every counter: an extra miss or a silent error fails here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotstart import Cache, Key

ZERO: dict[str, Any] = {
    "hits": {"memory": 0, "disk": 0, "layer": 0, "flight": 0},
    "misses": 0,
    "compiled": 0,
    "puts": 0,
    "evicted": 0,
    "corrupt": 0,
    "expired": 0,
    "other_version": 0,
    "refused": {},
    "errors": {},
    "seconds_saved": 0.0,
    "seconds_compiling": 0.0,
    "bytes_written": 0,
    "index_rebuilt": 0,
    "swept": 0,
    "entries": 0,
    "bytes": 0,
    "max_size": 10 << 30,
    "memory": {"entries": 0, "bytes": 0, "evicted": 0},
}


class Expected:
    """The counters as they should be, changed step by step."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.values: dict[str, Any] = {**ZERO, "hits": dict(ZERO["hits"]), "refused": {}, "errors": {}}

    def check(self, **changes: Any) -> None:
        for name, change in changes.items():
            group, _, part = name.partition("__")
            if part:
                self.values[group][part] = self.values[group].get(part, 0) + change
            else:
                self.values[name] += change
        found = self.cache.stats()
        # Sizes follow from the format; that they are what is on disk is tested elsewhere.
        for measured in ("bytes", "bytes_written", "seconds_compiling", "memory"):
            self.values[measured] = found[measured]
        assert found == self.values


def key(n: object) -> Key:
    return Key("test", n=n)


def test_a_life_on_disk(tmp_path: Path) -> None:
    with Cache(tmp_path / "s", memory=0) as cache:
        life = Expected(cache)
        life.check()
        assert cache.get(key(1)) is None
        life.check(misses=1)
        assert cache.put(key(1), {"x": b"1"}, cost=2.0)
        life.check(puts=1, entries=1)
        assert cache.get(key(1)) is not None
        life.check(hits__disk=1, seconds_saved=2.0)
        cache.get_or_compile(key(1), dict)
        life.check(hits__disk=1, seconds_saved=2.0)
        cache.get_or_compile(key(2), lambda: {"x": b"2"})
        life.check(misses=1, compiled=1, puts=1, entries=1)
        with pytest.raises(ZeroDivisionError):
            cache.get_or_compile(key(3), lambda: {"x": bytes(1 // 0)})
        life.check(misses=1)
        assert key(1) in cache
        assert key(9) not in cache
        life.check()
        path = Path(cache._disk.path(key(1).digest))  # type: ignore[union-attr]
        path.write_bytes(path.read_bytes()[:-1])
        assert cache.get(key(1)) is None
        life.check(misses=1, corrupt=1, entries=-1)
        assert cache.get(key(1)) is None
        life.check(misses=1)
        assert cache.delete(key(2))
        assert not cache.delete(key(2))
        life.check(entries=-1)
        assert cache.put(key(4), {})
        cache.gc()
        cache.verify()
        assert str(cache.explain(key(5))) == "test: n 4 → 5"
        life.check(puts=1, entries=1)
        cache.clear()
        life.check(entries=-1)


def test_a_life_in_memory(tmp_path: Path) -> None:
    with Cache(tmp_path / "s") as cache:
        life = Expected(cache)
        assert cache.put(key(1), {"x": b"1"}, cost=1.0)
        life.check(puts=1, entries=1)
        for _ in range(3):
            assert cache.get(key(1)) is not None
        life.check(hits__memory=3, seconds_saved=3.0)


def test_a_life_with_layers(tmp_path: Path) -> None:
    with Cache(tmp_path / "base") as base:
        base.put(key(1), {"x": b"1"}, cost=4.0)
    with Cache(tmp_path / "s", under=[tmp_path / "base"]) as cache:
        life = Expected(cache)
        assert cache.get(key(1)) is not None
        life.check(hits__layer=1, seconds_saved=4.0, entries=1)
        assert cache.get(key(1)) is not None
        life.check(hits__memory=1, seconds_saved=4.0)


def test_refusals_are_named(tmp_path: Path) -> None:
    with Cache(tmp_path / "s", memory=0, max_size=10_000) as cache:
        life = Expected(cache)
        life.values["max_size"] = 10_000
        assert not cache.put(key(1), {"x": bytes(20_000)})
        life.check(refused__oversize=1)
        for n in range(10):
            assert cache.put(key(n), {"x": bytes(1000)})
        evicted = cache.stats()["evicted"]
        assert evicted > 0
        life.check(puts=10, evicted=evicted, entries=10 - evicted)
    with Cache(tmp_path / "s", memory=0, read_only=True) as cache:
        life = Expected(cache)
        assert not cache.put(key(1), {})
        life.check(refused__unwritable=1, entries=10 - evicted)
