"""``kill -9`` at random moments, eight processes at work: nothing wrong, nothing lost, the accounts add up."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hotstart import Cache, Key
from hotstart.testing import audit

spawn = multiprocessing.get_context("spawn")

WORKERS = 8
KILLS = 100 * int(os.environ.get("HOTSTART_TEST_SCALE", "1"))


def key(worker: int, n: int) -> Key:
    return Key("test", worker=worker, n=n)


def value(worker: int, n: int, version: int) -> dict[str, bytes]:
    """Recognisable: anything torn or mixed shows."""
    word = b"%d.%d.%d " % (worker, n, version)
    return {"small": word * 40, "large": (word * 40_000)[:270_000] if n % 7 == 0 else word}


def work(root: str, log: str, worker: int, incarnation: int, mode: str) -> None:
    """Put, read, delete, evict or rebuild for ever; each put that returned True is logged after it did."""
    chance = random.Random(worker * 1000 + incarnation)
    cap = 3_000_000 if mode == "evict" else "10GiB"
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    version = incarnation * 100_000
    with Cache(root, memory=0, max_size=cap) as cache:
        while True:
            n = chance.randrange(30)
            version += 1
            if cache.put(key(worker, n), value(worker, n, version), cost=chance.random()):
                os.write(fd, b"%d %d %d\n" % (worker, n, version))
            other = chance.randrange(WORKERS)
            found = cache.get(key(other, n))
            if found is not None:
                seen = int(found["small"].split()[0].split(b".")[2])
                if dict(found.items()) != value(other, n, seen):
                    os.write(fd, b"wrong %d %d\n" % (other, n))
            if mode == "rebuild" and chance.random() < 0.1:
                for name in chance.choice([["index.sqlite"], ["ledger"], ["index.sqlite", "ledger"]]):
                    (Path(root) / name).unlink(missing_ok=True)
                cache.gc()


@pytest.mark.parametrize("mode", ["put", "evict", "rebuild"])
def test_killed_at_any_moment(tmp_path: Path, cell: Any, mode: str) -> None:
    counted = cell("kill -9", f"{mode}, {WORKERS} processes")
    root, log = str(tmp_path / "s"), tmp_path / "log"
    chance = random.Random(mode)
    Cache(root).close()
    live = {}
    for worker in range(WORKERS):
        live[worker] = spawn.Process(target=work, args=(root, str(log), worker, 0, mode))
        live[worker].start()
    while not log.exists() or log.stat().st_size < 200:
        time.sleep(0.05)
    for kill in range(1, KILLS + 1):
        time.sleep(chance.uniform(0.0, 0.08))
        victim = chance.randrange(WORKERS)
        process = live[victim]
        assert process.is_alive(), f"worker {victim} ended by itself: {process.exitcode}"
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join(30)
        counted.runs += 1
        live[victim] = spawn.Process(target=work, args=(root, str(log), victim, kill, mode))
        live[victim].start()
    time.sleep(1.0)
    for process in live.values():
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join(30)
        counted.runs += 1
    check(root, log, counted, mode)
    counted.check(KILLS + WORKERS)


def check(root: str, log: Path, counted: Any, mode: str) -> None:
    """A new process finds everything that was promised, and the accounts in order."""
    promised: dict[tuple[int, int], int] = {}
    for line in log.read_text().splitlines():
        if line.startswith("wrong"):
            counted.harm("wrong", line)
            continue
        worker, n, version = map(int, line.split())
        promised[worker, n] = max(version, promised.get((worker, n), 0))
    assert len(promised) > 20
    cap = 3_000_000 if mode == "evict" else "10GiB"
    with Cache(root, memory=0, max_size=cap) as cache:
        on_disk = audit(root)
        if cache.stats()["bytes"] < on_disk.bytes:
            counted.harm("accounts", f"{cache.stats()['bytes']} recorded, {on_disk.bytes} on disk")
        if mode == "evict" and on_disk.bytes > 3_000_000:
            counted.harm("accounts", f"{on_disk.bytes} bytes under a cap of 3,000,000")
        for (worker, n), version in promised.items():
            found = cache.get(key(worker, n))
            if found is None:
                if mode != "evict":
                    counted.harm("lost", f"{worker} {n} {version}")
                continue
            seen = int(found["small"].split()[0].split(b".")[2])
            if dict(found.items()) != value(worker, n, seen):
                counted.harm("wrong", f"{worker} {n}")
            elif seen < version:
                counted.harm("lost", f"{worker} {n}: {seen} instead of {version}")
        if cache.stats()["corrupt"] or cache.stats()["errors"]:
            counted.harm("broken", str(cache.stats()))
        cache.gc()
        after = audit(root)
        if (cache.stats()["entries"], cache.stats()["bytes"]) != (after.entries, after.bytes):
            counted.harm("accounts", f"after gc: {cache.stats()['bytes']} recorded, {after.bytes} on disk")
        if not cache.put(key(99, 1), {"x": b"1"}) or cache.get(key(99, 1)) is None:
            counted.harm("broken", "takes no more entries")
        # What the dead left in tmp/ is swept once it is old.
        old = time.time() - 7200
        for path in after.temporary:
            os.utime(os.path.join(root, path), (old, old))
        cache.gc()
        if audit(root).temporary:
            counted.harm("leaked", str(audit(root).temporary))
