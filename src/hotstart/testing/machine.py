"""A Hypothesis state machine: a cache against a plain dict, through whatever can happen to it.

    class MyMachine(CacheMachine):
        def make_cache(self, root): return MyCache(root)

    TestMyMachine = MyMachine.TestCase

The model is a dict of what was put. After any sequence of steps, damage and restarts
included, ``get`` returns exactly what was put last, or nothing where nothing is allowed;
never anything else.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ..cache import Cache
from ..keys.key import Key
from .audit import audit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..store.entry import Entry

_names = st.integers(0, 11)
_sizes = st.sampled_from([0, 1, 700, 5000, 90_000, 280_000])


class CacheMachine(RuleBasedStateMachine):
    """One cache without a cap worth mentioning: what was put stays, unless it was damaged."""

    max_size: int | str = "1GiB"
    memory: int | str = 0
    evicts = False

    def make_cache(self, root: Path) -> Cache:
        return Cache(root, max_size=self.max_size, memory=self.memory)

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="hotstart-machine-"))
        self.root = self.home / "store"
        self.cache = self.make_cache(self.root)
        self.model: dict[int, dict[str, bytes]] = {}
        #: What may be missing: damaged on disk, and not put again since.
        self.damaged: set[int] = set()
        self.pinned: set[int] = set()
        self.count = 0

    def teardown(self) -> None:
        if hasattr(self, "home"):
            self.cache.close()
            shutil.rmtree(self.home, ignore_errors=True)

    @staticmethod
    def key(n: int) -> Key:
        return Key("machine", n=n)

    @rule(n=_names, size=_sizes, shared=st.booleans())
    def put(self, n: int, size: int, shared: bool) -> None:
        self.count += 1
        filler = b"s" if shared else b"%d" % (self.count % 10)
        artifacts = {"x": filler * size, "count": b"%d" % self.count}
        stored = self.cache.put(self.key(n), artifacts, cost=float(n))
        assert stored or self.evicts
        if stored:
            self.model[n] = artifacts
            self.damaged.discard(n)
        else:
            # Refused for want of room: what was there before may be there still, or evicted on the way.
            self.damaged.add(n)

    @rule(n=_names)
    def get(self, n: int) -> None:
        self.compare(n, self.cache.get(self.key(n)))

    def compare(self, n: int, found: Entry | None) -> None:
        expected = self.model.get(n)
        if found is None:
            assert expected is None or n in self.damaged or (self.evicts and n not in self.pinned)
            if not self.evicts or n in self.damaged:
                self.model.pop(n, None)
                self.damaged.discard(n)
        else:
            assert expected is not None
            assert dict(found.items()) == expected

    @rule(n=_names)
    def compile(self, n: int) -> None:
        self.count += 1
        fresh = {"x": b"compiled", "count": b"%d" % self.count}
        entry = self.cache.get_or_compile(self.key(n), lambda: fresh)
        if entry.tier == "compiled":
            assert n not in self.model or n in self.damaged or self.evicts
            assert dict(entry.items()) == fresh
            self.model[n] = fresh
            self.damaged.discard(n)
        else:
            self.compare(n, entry)

    @rule(n=_names)
    def delete(self, n: int) -> None:
        gone = self.cache.delete(self.key(n))
        assert gone or n not in self.model or n in self.damaged or self.evicts
        self.model.pop(n, None)
        self.damaged.discard(n)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.model.clear()
        self.damaged.clear()

    @rule()
    def reopen(self) -> None:
        self.cache.close()
        self.cache = self.make_cache(self.root)

    @rule()
    def collect(self) -> None:
        self.cache.gc()
        found = audit(self.root)
        stats = self.cache.stats()
        assert (stats["entries"], stats["bytes"]) == (found.entries, found.bytes)

    @rule(name=st.sampled_from(["index.sqlite", "ledger"]), how=st.sampled_from(["delete", "empty", "garbage", "cut"]))
    def lose_accounts(self, name: str, how: str) -> None:
        path = self.root / name
        if not path.exists():
            return
        if how == "delete":
            path.unlink()
        elif how == "empty":
            path.write_bytes(b"")
        elif how == "garbage":
            path.write_bytes(b"garbage" * 300)
        else:
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2])

    @rule(n=_names, at=st.integers(0, 1 << 20), bit=st.integers(0, 7))
    def damage(self, n: int, at: int, bit: int) -> None:
        disk = self.cache.disk
        assert disk is not None
        path = Path(disk.path(self.key(n).digest))
        if path.exists() and n not in self.pinned:
            data = bytearray(path.read_bytes())
            data[at % len(data)] ^= 1 << bit
            path.write_bytes(data)
            self.damaged.add(n)

    @rule(at=st.integers(0, 1 << 20))
    def damage_blobs(self, at: int) -> None:
        if self.pinned:
            return
        for path in (self.root / "blobs").rglob("*"):
            if path.is_file():
                data = bytearray(path.read_bytes())
                data[at % len(data)] ^= 1
                path.write_bytes(data)
        self.damaged.update(n for n, artifacts in self.model.items() if len(artifacts["x"]) > 200_000)

    @rule()
    def verify(self) -> None:
        self.cache.verify()
        assert not self.cache.verify()["damaged"]

    @precondition(lambda self: hasattr(self, "root"))
    @invariant()
    def never_more_on_disk_than_accounted_for(self) -> None:
        known = self.cache.disk.ledger.peek() if self.cache.disk else None
        if known is not None:
            assert known[1] >= audit(self.root).bytes


class EvictingMachine(CacheMachine):
    """A cap that holds a few entries: misses are allowed, wrong bytes and too many bytes are not; pins hold."""

    max_size: int | str = 400_000
    evicts = True

    @rule(n=_names)
    def pin(self, n: int) -> None:
        if len(self.pinned) < 2 and n in self.model and n not in self.damaged and self.key(n) in self.cache:
            assert self.cache.pin(self.key(n))
            self.pinned.add(n)

    @rule(n=_names)
    def unpin(self, n: int) -> None:
        assert self.cache.unpin(self.key(n)) == (n in self.pinned)
        self.pinned.discard(n)

    @rule(size=st.sampled_from([0, 1, 100_000, 300_000]), older_than=st.sampled_from([None, 0.0, 3600.0]))
    def shrink(self, size: int, older_than: float | None) -> None:
        would = self.cache.gc(max_size=size, older_than=older_than, dry_run=True)
        before = audit(self.root)
        done = self.cache.gc(max_size=size, older_than=older_than)
        after = audit(self.root)
        assert after.bytes <= size or self.pinned
        assert done["entries"] == before.entries - after.entries
        assert would["entries"] <= before.entries

    @precondition(lambda self: hasattr(self, "root"))
    @invariant()
    def the_cap_holds(self) -> None:
        assert audit(self.root).bytes <= 400_000


class RememberingMachine(CacheMachine):
    """With a memory tier too small for the larger entries: what it serves is never older than what was put."""

    memory: int | str = 60_000

    @rule(n=_names)
    def read_twice(self, n: int) -> None:
        """What one tier says, the other confirms."""
        first, second = self.cache.get(self.key(n)), self.cache.get(self.key(n))
        assert (first is None) == (second is None)
        self.compare(n, second)


class LayeredMachine(CacheMachine):
    """A cache over a read-only layer that holds some of the names: what is deleted above shines through."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        self.cache.close()
        self.layer = self.home / "layer"
        self.below = {n: {"x": b"layer", "count": b"%d" % -n} for n in range(6)}
        with Cache(self.layer) as layer:
            for n, artifacts in self.below.items():
                layer.put(self.key(n), artifacts)
        self.cache = self.make_cache(self.root)

    def make_cache(self, root: Path) -> Cache:
        under = [self.layer] if hasattr(self, "layer") else []
        return Cache(root, max_size=self.max_size, memory=0, under=under)

    def compare(self, n: int, found: Entry | None) -> None:
        if n not in self.below:
            super().compare(n, found)
            return
        assert found is not None
        shown = dict(found.items())
        if n in self.model and n not in self.damaged:
            assert shown == self.model[n]
        else:
            assert shown == self.below[n] or shown == self.model.get(n)
            self.model[n] = shown
            self.damaged.discard(n)

    @rule(n=_names)
    def compile(self, n: int) -> None:
        self.count += 1
        fresh = {"x": b"compiled", "count": b"%d" % self.count}
        entry = self.cache.get_or_compile(self.key(n), lambda: fresh)
        if entry.tier == "compiled":
            assert n not in self.below
            self.model[n] = fresh
            self.damaged.discard(n)
        else:
            self.compare(n, entry)
