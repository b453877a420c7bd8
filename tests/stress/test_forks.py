"""Fork and spawn at awkward moments: the child works, and leaves the parent's locks and files alone."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hotstart import Cache, Key
from hotstart.store import files
from hotstart.testing import SlowIO, audit

if TYPE_CHECKING:
    from tests.conftest import Child


def key(n: int) -> Key:
    return Key("fork", n=n)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock on a file."""
    fd = os.open(path, os.O_RDWR)
    try:
        files.flock(fd, files.LOCK_EX | files.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class Compiling:
    """A thread of this process in the middle of ``get_or_compile``, until ``finish``."""

    def __init__(self, cache: Cache, n: int) -> None:
        self._inside, self._go_on = threading.Event(), threading.Event()
        self.entry: Any = None
        self._thread = threading.Thread(target=self._work, args=(cache, n))
        self._thread.start()
        assert self._inside.wait(60)

    def _work(self, cache: Cache, n: int) -> None:
        self.entry = cache.get_or_compile(key(n), self._compile)

    def _compile(self) -> dict[str, bytes]:
        self._inside.set()
        assert self._go_on.wait(60)
        return {"x": b"parent"}

    def finish(self) -> None:
        self._go_on.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_a_child_of_a_process_that_compiles_does_not_end_that_flight(
    swift_path: Path, fork: Callable[..., Child]
) -> None:
    root = swift_path / "store"
    cache = Cache(root, wait=0.3)
    flight = Compiling(cache, 1)
    lock = root / "flights" / key(1).digest

    def in_the_child() -> list[object]:
        other = cache.get_or_compile(key(2), lambda: {"x": b"child"})
        # The parent's thread is not here: the child waits for the parent's lock as any process would, then compiles.
        same = cache.get_or_compile(key(1), lambda: {"x": b"child"})
        return [other.tier, same["x"].decode(), cache.put(key(3), {}), cache.stats()["errors"]]

    assert fork(in_the_child).result() == ["compiled", "child", True, {}]
    assert is_locked(lock), "the child took the parent's lock with it"
    flight.finish()
    assert flight.entry["x"] == b"parent"
    assert not lock.exists()
    assert cache.get(key(2)) is not None and cache.get(key(3)) is not None


def test_a_fork_inside_a_compile_returns_twice_and_unlocks_once(swift_path: Path) -> None:
    """The child comes back up through ``get_or_compile`` with a lock that is not its own."""
    root = swift_path / "store"
    cache = Cache(root)
    child = -1
    still_locked = False

    def make() -> dict[str, bytes]:
        nonlocal child, still_locked
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            still_locked = is_locked(root / "flights" / key(1).digest)
        return {"x": b"made"}

    entry = cache.get_or_compile(key(1), make)
    if child == 0:
        os._exit(0 if entry["x"] == b"made" else 1)
    assert entry["x"] == b"made"
    assert still_locked, "the child removed the lock of the parent's flight"
    assert list((root / "flights").iterdir()) == []


def test_a_child_neither_has_nor_frees_the_lock_of_its_parent(
    swift_path: Path, fork: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotstart.store.ledger.LOCK_WAIT", 0.2)
    monkeypatch.setattr("hotstart.store.ledger._END_WAIT", 0.2)
    root = swift_path / "store"
    cache = Cache(root, memory=0)
    assert cache.put(key(1), {"x": b"1"})
    assert cache.disk is not None

    def in_the_child() -> list[object]:
        return [cache.get(key(1)) is not None, cache.put(key(2), {}), cache.stats()["refused"]]

    assert cache.disk.ledger.acquire(5)  # a turn that takes long
    for _ in range(2):  # the second shows whether the first, in going, freed it
        assert fork(in_the_child).result() == [True, False, {"locked": 1}]
    assert is_locked(root / "ledger")
    cache.disk.ledger.release()
    assert fork(in_the_child).result() == [True, True, {}]
    assert cache.get(key(2)) is not None


def test_a_fork_waits_for_the_turn_of_another_thread(swift_path: Path) -> None:
    """A child that ends in the ordinary way lets SQLite roll back what it has a copy of: it must have none."""
    root = swift_path / "store"
    cache = Cache(root, memory=0)
    for n in range(200):
        assert cache.put(key(n), {"x": b"%d" % n})
    assert cache.disk is not None
    store = cache.disk
    inside, seen = threading.Event(), []

    def turn() -> None:
        assert store.acquire()
        try:
            inside.set()
            store.upkeep.with_index(lambda _room: seen.append(forked.wait(0.3)))
        finally:
            store.ledger.release()

    forked = threading.Event()
    thread = threading.Thread(target=turn)
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0)
    forked.set()
    os.waitpid(child, 0)
    thread.join()
    assert seen == [False], "the process forked while a thread was in a transaction"


def test_a_child_does_not_keep_a_rebuild_locked(swift_path: Path, fork: Callable[..., Child]) -> None:
    """Made while a thread rebuilds, it would hold that lock for as long as it lives, were it to keep the descriptor."""
    root = swift_path / "store"
    cache = Cache(root, memory=0)
    assert cache.put(key(1), {})
    (root / "ledger").unlink()
    cache.close()

    def rebuild() -> None:
        with SlowIO(0.5, only=("scandir",)):
            assert len(cache) == 1

    thread = threading.Thread(target=rebuild)
    thread.start()
    while not is_there_and_locked(root / "rebuild"):
        time.sleep(0.01)
    child = fork(time.sleep, 600)
    thread.join()
    assert not is_locked(root / "rebuild"), "the child holds the lock of a rebuild that is over"
    assert child.is_running()


def is_there_and_locked(path: Path) -> bool:
    return path.exists() and is_locked(path)


def test_forks_while_threads_are_at_work(swift_path: Path, fork: Callable[..., Child], scale: int) -> None:
    """Whatever the parent's threads hold at that moment, the child can do everything."""
    root = swift_path / "store"
    cache = Cache(root, max_size=300_000, memory=100_000)
    stop = threading.Event()
    wrong: list[object] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            n = chance.randrange(80)
            try:
                cache.put(key(n), {"x": b"%d" % n * 2000})
                entry = cache.get_or_compile(key(chance.randrange(80)), lambda: {"x": b"compiled"})
                assert entry["x"]
                cache.stats()
            except Exception as error:
                wrong.append(error)

    def in_the_child(n: int) -> list[object]:
        fine = cache.put(key(n), {"x": b"child"})
        entry = cache.get(key(n))
        made = cache.get_or_compile(key(n + 1), lambda: {"x": b"made"})
        cache.gc()
        cache.close()
        return [fine, entry is None or entry["x"] == b"child", made["x"] == b"made"]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(25 * scale):
            assert fork(in_the_child, 1000 + 2 * number).result() == [True, True, True]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    cache.gc()
    stats, truth = cache.stats(), audit(root)
    assert (stats["entries"], stats["bytes"]) == (truth.entries, truth.bytes)


SPAWNED = """
import pickle, sys
cache, key, other = pickle.load(sys.stdin.buffer)
assert cache.get(key)["x"] == b"parent"
assert cache.put(other, {"x": b"child"})
assert cache.disk.max_size == 1 << 20 and cache.disk.policy == "lru", cache
print(cache.get_or_compile(key, lambda: 1 / 0).tier)
"""


def test_a_cache_sent_to_another_process_is_the_same_store(swift_path: Path) -> None:
    cache = Cache(swift_path / "store", max_size="1MiB", policy="lru", memory=0)
    assert cache.put(key(1), {"x": b"parent"})
    sent = pickle.dumps((cache, key(1), key(2)))
    done = subprocess.run([sys.executable, "-c", SPAWNED], input=sent, capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, b"disk\n"), done.stderr
    entry = cache.get(key(2))
    assert entry is not None and entry["x"] == b"child"


def test_descriptors_are_not_inherited_by_other_programs(swift_path: Path) -> None:
    """A lock that a compiler's subprocess holds on to would outlive the one who took it."""
    cache = Cache(swift_path / "store", max_size=50_000, memory=0)
    for n in range(20):
        cache.put(key(n), {"x": bytes(5000)})
    flight = Compiling(cache, 99)
    # As a careless program would: everything that is not marked close-on-exec goes along.
    script = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3'])"
    if not Path("/proc/self/fd").exists():
        flight.finish()
        pytest.skip("needs /proc to see what a child has open")
    shown = subprocess.run(
        [sys.executable, "-c", script], close_fds=False, capture_output=True, text=True, check=False, timeout=120
    )
    flight.finish()
    assert str(swift_path) not in shown.stdout, shown.stdout
