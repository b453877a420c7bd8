"""Once: threads and processes that want the same keys at the same time compile each of them once."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from hotstart import Cache, Key
from hotstart.testing import FailingIO

PROCESSES, THREADS, KEYS = 16, 4, 50

spawn = multiprocessing.get_context("spawn")


def key(n: int) -> Key:
    return Key("test", n=n, name="once")


def note(log: str, text: str) -> None:
    """One line, whole, whoever else is writing."""
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, text.encode() + b"\n")
    finally:
        os.close(fd)


def compile_slowly(log: str, n: int) -> dict[str, bytes]:
    note(log, str(n))
    time.sleep(0.02)
    return {"x": b"%d" % n * 100}


def ask_for_everything(root: str, log: str, barrier: threading.Barrier, failures: str) -> None:
    with Cache(root, memory=0) as cache:
        barrier.wait(120)

        def work(seed: int) -> None:
            order = list(range(KEYS))
            random.Random(seed).shuffle(order)
            for n in order:
                entry = cache.get_or_compile(key(n), lambda n=n: compile_slowly(log, n))  # type: ignore[misc]
                if entry["x"] != b"%d" % n * 100:
                    note(failures, f"wrong bytes for {n}")

        threads = [threading.Thread(target=work, args=(os.getpid() * 10 + t,)) for t in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = cache.stats()["errors"]
        if errors:
            note(failures, str(errors))


def test_sixty_four_askers_fifty_keys_fifty_compiles(tmp_path: Path) -> None:
    log, failures = str(tmp_path / "log"), str(tmp_path / "failures")
    barrier = spawn.Barrier(PROCESSES)
    askers = [
        spawn.Process(target=ask_for_everything, args=(str(tmp_path / "s"), log, barrier, failures))
        for _ in range(PROCESSES)
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(180)
    assert [asker.exitcode for asker in askers] == [0] * PROCESSES
    assert not Path(failures).exists() or Path(failures).read_text() == ""
    assert sorted(map(int, Path(log).read_text().split())) == list(range(KEYS))
    assert not list((tmp_path / "s" / "flights").iterdir())


def hold(root: str, log: str) -> None:
    def never_ends() -> dict[str, bytes]:
        note(log, "held")
        time.sleep(600)
        return {}

    Cache(root).get_or_compile(key(0), never_ends)


def take_over(root: str, log: str) -> None:
    entry = Cache(root).get_or_compile(key(0), lambda: compile_slowly(log, 7))
    note(log, entry.tier)


def wait_for(log: str, text: str, count: int = 1) -> None:
    for _ in range(6000):
        if Path(log).exists() and Path(log).read_text().split().count(text) >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{text!r} never came: {Path(log).read_text() if Path(log).exists() else 'no log'}")


def test_when_the_holder_is_killed_exactly_one_takes_over(tmp_path: Path) -> None:
    root, log = str(tmp_path / "s"), str(tmp_path / "log")
    holder = spawn.Process(target=hold, args=(root, log))
    holder.start()
    wait_for(log, "held")
    others = [spawn.Process(target=take_over, args=(root, log)) for _ in range(4)]
    for other in others:
        other.start()
    time.sleep(0.3)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    for process in (*others, holder):
        process.join(60)
    lines = Path(log).read_text().split()
    assert lines.count("7") == lines.count("compiled") == 1
    assert lines.count("disk") == 3


def opposite(root: str, first: int, second: int, barrier: threading.Barrier, log: str) -> None:
    cache = Cache(root)

    def outer() -> dict[str, bytes]:
        barrier.wait(60)
        inner = cache.get_or_compile(key(second), lambda: {"x": b"inner"})
        return {"x": inner["x"]}

    cache.get_or_compile(key(first), outer)
    note(log, "done")


def test_two_keys_in_opposite_orders_do_not_hang(tmp_path: Path) -> None:
    barrier = spawn.Barrier(2)
    log = str(tmp_path / "log")
    pair = [spawn.Process(target=opposite, args=(str(tmp_path / "s"), a, b, barrier, log)) for a, b in ((1, 2), (2, 1))]
    for process in pair:
        process.start()
    for process in pair:
        process.join(60)
    assert [process.exitcode for process in pair] == [0, 0]
    assert Path(log).read_text().split() == ["done", "done"]


def test_the_same_in_two_threads_of_one_process(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "s")
    barrier = threading.Barrier(2)
    done = []

    def work(first: int, second: int) -> None:
        def outer() -> dict[str, bytes]:
            barrier.wait(60)
            return {"x": cache.get_or_compile(key(second), lambda: {"x": b"inner"})["x"]}

        cache.get_or_compile(key(first), outer)
        done.append(first)

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == [1, 2]


def test_a_key_nested_in_itself_compiles(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "s")
    calls = []

    def outer() -> dict[str, bytes]:
        calls.append("outer")
        return {"x": cache.get_or_compile(key(1), lambda: {"x": b"inner"})["x"]}

    assert cache.get_or_compile(key(1), outer)["x"] == b"inner"
    assert calls == ["outer"]


def wait_for_waiters(cache: Cache, n: int, count: int) -> None:
    """Until so many threads of this process wait for the flight of a key."""
    flight = cache.flights()._flying[key(n).digest]
    for _ in range(6000):
        if len(flight.done._cond._waiters) >= count:  # type: ignore[attr-defined]
            return
        time.sleep(0.01)
    raise AssertionError(f"{count} threads should be waiting")


@pytest.mark.parametrize("on_disk", [True, False])
def test_an_exception_reaches_every_waiter_and_is_not_kept(tmp_path: Path, on_disk: bool) -> None:
    cache = Cache(tmp_path / "s" if on_disk else None)
    caught: list[BaseException] = []
    compiles: list[int] = []

    def fails() -> dict[str, bytes]:
        compiles.append(1)
        wait_for_waiters(cache, 1, 4)
        raise ValueError("no such kernel")

    def work() -> None:
        try:
            cache.get_or_compile(key(1), fails)
        except ValueError as error:
            caught.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caught) == 5
    assert len({id(error) for error in caught}) == len(compiles) == 1
    assert cache.get(key(1)) is None
    assert cache.get_or_compile(key(1), lambda: {"x": b"second try"})["x"] == b"second try"


def test_an_interrupted_compile_is_taken_over_by_a_waiter(tmp_path: Path) -> None:
    """Ctrl-C in one thread is not the others' exception: one of them compiles."""
    cache = Cache(tmp_path / "s")
    first = threading.Event()
    entries: list[bytes] = []

    def make() -> dict[str, bytes]:
        if not first.is_set():
            first.set()
            wait_for_waiters(cache, 1, 3)
            raise KeyboardInterrupt
        return {"x": b"made by another"}

    def work() -> None:
        try:
            entries.append(cache.get_or_compile(key(1), make)["x"])
        except KeyboardInterrupt:
            entries.append(b"interrupted")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entries) == [b"interrupted"] + [b"made by another"] * 3


@pytest.mark.parametrize("kind", ["memory", "disk", "read-only"])
def test_the_first_callers_of_a_new_cache_compile_once(tmp_path: Path, kind: str, scale: int) -> None:
    """Everything that is made on first use is made once, and who comes late looks again before it compiles."""
    Cache(tmp_path / "s").close()
    for turn in range(60 * scale):
        cache = Cache(None) if kind == "memory" else Cache(tmp_path / "s", read_only=kind == "read-only")
        start = threading.Barrier(6)
        compiles: list[int] = []

        def work(cache: Cache = cache, n: int = turn, start: threading.Barrier = start) -> None:
            start.wait(60)
            cache.get_or_compile(key(n), lambda: compiles.append(1) or {"x": b"made"})  # type: ignore[func-returns-value]  # noqa: B023

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(compiles) == 1


def test_compiles_nested_at_random_in_threads_do_not_hang(tmp_path: Path) -> None:
    """Chains of keys in all orders, so that everybody waits for everybody unless somebody gives way."""
    cache = Cache(tmp_path / "s", memory=0, wait=120)
    wrong: list[object] = []

    def ask(chain: list[int]) -> bytes:
        def make() -> dict[str, bytes]:
            time.sleep(0.001)
            if len(chain) > 1:
                ask(chain[1:])
            return {"x": b"%d" % chain[0]}

        return cache.get_or_compile(key(chain[0]), make)["x"]

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for turn in range(25):
            chain = [turn * 10 + n for n in chance.sample(range(5), 4)]
            try:
                if ask(chain) != b"%d" % chain[0]:
                    wrong.append(chain)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other for ever"
    assert wrong == []


def test_a_lock_that_cannot_be_had_is_not_waited_for(tmp_path: Path) -> None:
    """Only another's lock is worth waiting for: a full or read-only disk is not."""
    cache = Cache(tmp_path / "s", memory=0)
    for error in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EMFILE):
        with FailingIO(error, at=1, onwards=True, only=("open", "mkdir")):
            assert cache.get_or_compile(key(error), lambda: {"x": b"made"})["x"] == b"made"
        assert cache.stats()["errors"][f"flight.{errno.errorcode[error]}"] == 1


def compile_side_by_side(root: str, log: str, barrier: threading.Barrier) -> None:
    """The store takes nothing: everybody must be compiling at the same time, or the barrier breaks."""
    cache = Cache(root, max_size=1000)

    def too_large() -> dict[str, bytes]:
        note(log, "compiling")
        first = len(Path(log).read_text().split()) == 1
        if first:
            time.sleep(0.3)  # the others are waiting for this one by now
        else:
            barrier.wait(60)
        return {"x": bytes(2000)}

    assert cache.get_or_compile(key(1), too_large)["x"] == bytes(2000)


def test_when_nothing_can_be_stored_nobody_queues(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    barrier = spawn.Barrier(3)
    processes = [spawn.Process(target=compile_side_by_side, args=(str(tmp_path / "s"), log, barrier)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    assert [process.exitcode for process in processes] == [0] * 4


def test_a_forked_child_holds_none_of_its_parents_locks(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "s", wait=30)
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> dict[str, bytes]:
        inside.set()
        go_on.wait(60)
        return {"x": b"parent"}

    thread = threading.Thread(target=lambda: cache.get_or_compile(key(1), slow))
    thread.start()
    inside.wait(60)
    child = os.fork()
    if child == 0:
        # Nobody in the child is compiling; another key must work at once, with its own locks.
        try:
            fine = cache.get_or_compile(key(2), lambda: {"x": b"child"})["x"] == b"child"
            fine = fine and cache.put(key(3), {"x": b"3"}) and cache.stats()["errors"] == {}
            time.sleep(1.0)  # outlive the parent's flight: its lock must not live on in us
            os._exit(0 if fine else 1)
        finally:
            os._exit(2)
    go_on.set()
    thread.join(60)
    with Cache(tmp_path / "s", memory=0, wait=5) as other:
        assert other.get_or_compile(key(1), lambda: {"x": b"other"})["x"] == b"parent"
    assert os.waitpid(child, 0)[1] == 0
    assert cache.get(key(2)) is not None
