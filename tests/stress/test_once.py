"""Once: threads and processes that want the same keys at the same time compile each of them once."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

from hotstart import Cache, Key

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


def test_an_exception_reaches_every_waiter_and_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "s")
    waiting = threading.Barrier(5)
    caught: list[BaseException] = []

    def fails() -> dict[str, bytes]:
        # All five have looked and found nothing before the one that compiles goes on.
        for _ in range(2000):
            if len(cache._flight()._flying) and waiting.n_waiting == 0:
                break
            time.sleep(0.005)
        time.sleep(0.2)
        raise ValueError("no such kernel")

    def work() -> None:
        waiting.wait(60)
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
    assert len({id(error) for error in caught}) < 5
    assert cache.get(key(1)) is None


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
