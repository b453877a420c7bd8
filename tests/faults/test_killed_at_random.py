"""Eight processes on one store, killed at random moments of put, evict and rebuild, again and again.

Protects contract 3 where one process's death meets the work of seven others: locks
are freed, nothing half-written is seen, no promise is broken.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hotstart import Cache, Entry, Key
from hotstart.store.ledger import Ledger
from hotstart.testing import audit

if TYPE_CHECKING:
    from tests.faults.conftest import Cell

PROCESSES = 8
ROUNDS = 25
#: Keys of each process; it alone puts them, newer versions over older ones.
OWN = 20
CAP = 400_000

#: A worker's messages: two bytes of key, four of version, one that says what happened.
PUT, WRONG, RAISED = b"+", b"!", b"?"


def key(n: int) -> Key:
    return Key("killed", n=n)


def content(n: int, version: int) -> dict[str, bytes]:
    """Anything torn or mixed shows. Every other one with blobs, one of them shared with many."""
    word = b"%d.%d " % (n, version)
    blobs = {"own": word * 700, "shared": b"%d" % (version % 7) * 6000} if version % 2 else {}
    return {"small": word * 30, **blobs}


def version_of(n: int, entry: Entry) -> int | None:
    """Which version this is; None when it is none of them."""
    version = int(entry["small"].split()[0].split(b".")[1])
    return version if dict(entry.items()) == content(n, version) else None


def put(cache: Cache, _root: Path, n: int, version: int, chance: random.Random) -> bool:
    return cache.put(key(n), content(n, version), cost=chance.random())


def put_while_the_index_gets_lost(cache: Cache, root: Path, n: int, version: int, chance: random.Random) -> bool:
    """One of the eight removes the index, now and then the ledger too, and whoever needs them has to walk."""
    if n < OWN and version % 4 == 0:
        for name in ("index.sqlite", "ledger")[: 1 + (chance.random() < 0.3)]:
            with contextlib.suppress(OSError):
                (root / name).unlink()
        cache.digests("none of this kind")  # needs the index, so somebody makes one
    return put(cache, root, n, version, chance)


def work(root: Path, worker: int, version: int, said: int, step: Callable[..., bool], cap: int) -> None:
    """Until killed: put, read what oneself and others have put, and say what was seen."""
    chance = random.Random(version * PROCESSES + worker)
    cache = Cache(root, max_size=cap, memory=0, policy=chance.choice(("lru", "cost")))
    while True:
        n = worker * OWN + chance.randrange(OWN)
        version += 1
        message = n.to_bytes(2, "little") + version.to_bytes(4, "little")
        try:
            if step(cache, root, n, version, chance):
                os.write(said, message + PUT)
            seen = chance.choice((n, chance.randrange(PROCESSES * OWN)))
            entry = cache.get(key(seen))
            if entry is not None and version_of(seen, entry) is None:
                os.write(said, message + WRONG)
        except Exception:
            os.write(said, message + RAISED)


def kill_round(root: Path, number: int, step: Callable[..., bool], cap: int, cell: Cell) -> dict[int, int]:
    """Start eight, kill all of them within milliseconds; the last version of each key that was promised."""
    reader, writer = os.pipe()
    chance = random.Random(number)
    children = []
    for worker in range(PROCESSES):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reader)
                work(root, worker, number * 10_000, writer, step, cap)
            finally:
                os._exit(1)
        children.append(pid)
    os.close(writer)
    time.sleep(chance.uniform(0.005, 0.05))
    for pid in chance.sample(children, PROCESSES):
        os.kill(pid, signal.SIGKILL)
        time.sleep(chance.uniform(0, 0.003))
    for pid in children:
        os.waitpid(pid, 0)
    cell.runs += PROCESSES
    with os.fdopen(reader, "rb") as file:
        said = file.read()
    promised = {}
    for at in range(0, len(said), 7):
        n, version = int.from_bytes(said[at : at + 2], "little"), int.from_bytes(said[at + 2 : at + 6], "little")
        what = said[at + 6 : at + 7]
        if what == PUT:
            promised[n] = version
        else:
            cell.harm("wrong" if what == WRONG else "raised", f"round {number}: key {n}, version {version}")
    return promised


@pytest.mark.parametrize(
    ("operation", "step", "cap"),
    [("put", put, 1 << 40), ("evict", put, CAP), ("rebuild", put_while_the_index_gets_lost, 1 << 40)],
    ids=["put", "evict", "rebuild"],
)
def test_eight_processes_killed_at_random_break_no_promise(
    operation: str,
    step: Callable[..., bool],
    cap: int,
    tmp_path: Path,
    small_blobs: int,
    monkeypatch: pytest.MonkeyPatch,
    cell: Callable[[str, str], Cell],
    scale: int,
) -> None:
    monkeypatch.setenv("HOTSTART_LOG", "off")
    root = tmp_path / "store"
    Cache(root).close()
    kept = cell("SIGKILL, 8 processes", operation)
    promised: dict[int, int] = {}
    total = 0
    for number in range(ROUNDS * scale):
        fresh = kill_round(root, number, step, cap, kept)
        total += len(fresh)
        promised |= fresh
        truth, known = audit(root), Ledger(f"{root}/ledger").peek()
        if known is not None and known[1] < truth.bytes:
            kept.harm("accounts", f"round {number}: the ledger says {known[1]} bytes of {truth.bytes}")
        if truth.bytes > cap:
            kept.harm("accounts", f"round {number}: {truth.bytes} bytes over a cap of {cap}")
    assert total > 100, "the processes were killed before they had done anything"
    with Cache(root, max_size=cap, memory=0) as cache:
        for n, version in promised.items():
            entry = cache.get(key(n))
            if entry is None:
                if operation != "evict":
                    kept.harm("lost", f"key {n}; {cache.stats()}")
                continue
            found = version_of(n, entry)
            if found is None:
                kept.harm("wrong", f"key {n}")
            elif found < version:
                kept.harm("lost", f"key {n}: version {found} instead of {version}")
        check_at_the_end(root, cache, kept)
    kept.check(PROCESSES * ROUNDS)


def check_at_the_end(root: Path, cache: Cache, cell: Cell) -> None:
    """The store works, its accounts are right, and what the dead left behind is swept once it is old."""
    for path in (root / "tmp").iterdir():
        os.utime(path, (0, 0))
    if not cache.put(key(0), content(0, 1)):
        cell.harm("broken", f"{cache.stats()}")
    cache.gc()
    stats, truth = cache.stats(), audit(root)
    if (stats["entries"], stats["bytes"]) != (truth.entries, truth.bytes):
        cell.harm("accounts", f"after gc {stats['entries']}, {stats['bytes']} for {truth}")
    if truth.temporary:
        cell.harm("leaked", str(truth.temporary))
    damaged = cache.verify()["damaged"]
    if damaged:
        cell.harm("wrong", f"damaged by SIGKILL: {damaged}")
