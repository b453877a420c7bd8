"""Our own stores pass the suites that third parties are asked to pass."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from hotstart import Cache, ContentStore
from hotstart.testing import (
    CacheConformance,
    CacheMachine,
    ContentStoreConformance,
    DiskCacheConformance,
    EvictingMachine,
    LayeredMachine,
    RememberingMachine,
)


class TestContentStore(ContentStoreConformance):
    def make_store(self, root: Path) -> ContentStore:
        return ContentStore(root)

    def test_a_large_file_is_never_held_in_memory(self, root: Path, tmp_path: Path) -> None:
        piece = bytes(range(256)) * 4096
        with open(tmp_path / "large", "wb") as file:
            file.writelines(piece for _ in range(150))
        store = self.make_store(root)
        tracemalloc.start()
        try:
            for compress in (False, True):
                address = store.put_file(tmp_path / "large", compress=compress)
                with open(tmp_path / "back", "wb") as target:
                    assert store.copy_to(address, target)
                assert store.verify(address) == []
                store.delete(address)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (tmp_path / "back").stat().st_size == 150 << 20
        assert peak < 20 << 20


class TestDurableContentStore(ContentStoreConformance):
    def make_store(self, root: Path) -> ContentStore:
        return ContentStore(root, durable=True)


class TestCacheOnDisk(DiskCacheConformance):
    gigabyte = True

    def make_store(self, root: Path) -> Cache:
        return Cache(root, memory=0)


class TestCacheWithMemory(DiskCacheConformance):
    def make_store(self, root: Path) -> Cache:
        return Cache(root, policy="lru")


class TestDurableCache(DiskCacheConformance):
    def make_store(self, root: Path) -> Cache:
        return Cache(root, memory=0, durable=True)


class TestCacheInMemory(CacheConformance):
    def make_store(self, root: Path) -> Cache:
        return Cache(None)


@pytest.mark.parametrize("suite", [ContentStoreConformance, CacheConformance])
def test_a_suite_without_a_factory_says_so(suite: Any, tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="make_store"):
        suite().make_store(tmp_path)


def test_a_store_that_forgets_fails_its_suite(tmp_path: Path) -> None:
    """The suite can fail: a store that returns what it was given without checking does not pass."""

    class Forgetful(ContentStore):
        def get(self, address: str) -> bytes | None:
            target = io.BytesIO()
            super().copy_to(address, target)
            return target.getvalue()

    class Suite(ContentStoreConformance):
        def make_store(self, root: Path) -> ContentStore:
            return Forgetful(root)

    with pytest.raises(AssertionError):
        Suite().test_absent_is_none(tmp_path / "a")
    with pytest.raises(AssertionError):
        Suite().test_damage_is_found_set_aside_and_healed(tmp_path / "b")


TestMachine = CacheMachine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEvictingMachine = EvictingMachine.TestCase
TestEvictingMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRememberingMachine = RememberingMachine.TestCase
TestRememberingMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestLayeredMachine = LayeredMachine.TestCase
TestLayeredMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
