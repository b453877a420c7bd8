"""Index and ledger in any state: missing, cut, zeroed, of another version, full of noise.

Protects contract 4: files are the truth. Whatever these two say, entries are served
as they were put, nothing is lost, and the accounts come right again.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hotstart import Cache, Key
from hotstart.testing import audit

if TYPE_CHECKING:
    from tests.faults.conftest import Cell

HELD = 18
RUNS = 100

Damage = Callable[[Path, random.Random], None]


def key(n: int) -> Key:
    return Key("derived", n=n)


def content(n: int) -> dict[str, bytes]:
    big = {"own": b"%05d" % n * 1000, "shared": b"shared" * 1000} if n % 3 == 0 else {}
    return {"small": b"%d" % n * 100, **big}


def missing(path: Path, _: random.Random) -> None:
    path.unlink(missing_ok=True)


def zero_length(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(size_of(path)))


def cut_at_a_page(path: Path, chance: random.Random) -> None:
    os.truncate(path, 4096 * chance.randrange(1, max(2, size_of(path) // 4096)))


def noise(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(size_of(path)))


def noise_in_a_block(path: Path, chance: random.Random) -> None:
    block = min(size_of(path), chance.choice((8, 100, 4096)))
    overwrite(path, chance.randrange(max(1, size_of(path) - block)), chance.randbytes(block))


def zeroed_page(path: Path, chance: random.Random) -> None:
    overwrite(path, 4096 * chance.randrange(max(1, size_of(path) // 4096)), bytes(4096))


def flipped_bit(path: Path, chance: random.Random) -> None:
    at = chance.randrange(size_of(path))
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 1 << chance.randrange(8)]))


def another_version(path: Path, _: random.Random) -> None:
    """The user version of an SQLite file is at byte 60."""
    overwrite(path, 60, (99).to_bytes(4, "big"))


def somebody_elses(path: Path, _: random.Random) -> None:
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.executescript("PRAGMA user_version = 1; CREATE TABLE entries (digest)")
    database.close()


def dead_journal(path: Path, _: random.Random) -> None:
    """What a process that died in a transaction leaves behind; this one makes no sense."""
    path.with_name(path.name + "-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504))


def size_of(path: Path) -> int:
    """At least 1: an earlier damage may not have been noticed yet, and the file be missing or empty."""
    path.touch()
    if not path.stat().st_size:
        path.write_bytes(b"?")
    return path.stat().st_size


def overwrite(path: Path, at: int, data: bytes) -> None:
    """In place: an open handle sees the same file."""
    path.touch()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


INDEX_DAMAGE: list[Damage] = [
    missing,
    zero_length,
    cut,
    cut_at_a_page,
    noise,
    noise_in_a_block,
    zeroed_page,
    another_version,
    somebody_elses,
    dead_journal,
]
LEDGER_DAMAGE: list[Damage] = [missing, zero_length, cut, noise, noise_in_a_block, flipped_bit]


@pytest.fixture
def root(
    swift_path: Path,
    small_blobs: int,
    monkeypatch: pytest.MonkeyPatch,
    few_directories: Callable[[Iterable[Key], Iterable[bytes]], None],
) -> Iterator[Path]:
    monkeypatch.setenv("HOTSTART_LOG", "off")
    few_directories(map(key, range(HELD + 1)), [data for n in range(HELD + 1) for data in content(n).values()])
    root = swift_path / "store"
    with Cache(root, memory=0) as cache:
        for n in range(HELD):
            assert cache.put(key(n), content(n))
        cache.gc()
    yield root


def look_through(root: Path, cache: Cache, cell: Cell, what: str, *, all_held: bool = True) -> None:
    """Reads, writes, evicts nothing, counts: as if nothing had happened."""
    cell.runs += 1
    try:
        for n in range(HELD):
            entry = cache.get(key(n))
            if entry is None:
                if all_held:
                    cell.harm("lost", f"{what}: entry {n}; {cache.stats()}")
            elif dict(entry.items()) != content(n):
                cell.harm("wrong", f"{what}: entry {n}")
        if not cache.put(key(0), content(0)) or not cache.put(key(HELD), content(HELD)):
            cell.harm("broken", f"{what}: put says no: {cache.stats()}")
        str(cache.explain(Key("derived", n=-1)))
        cache.delete(key(HELD))
        cache.gc()
        stats, truth = cache.stats(), audit(root)
        if (stats["entries"], stats["bytes"]) != (truth.entries, truth.bytes):
            cell.harm("accounts", f"{what}: {stats['entries']}, {stats['bytes']} for {truth}")
        if truth.temporary:
            cell.harm("leaked", f"{what}: {truth.temporary}")
    except Exception as error:
        cell.harm("raised", f"{what}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("damage", INDEX_DAMAGE)
def test_a_damaged_index_costs_a_walk(root: Path, cell: Callable[[str, str], Cell], damage: Damage, scale: int) -> None:
    name = damage.__name__.replace("_", " ")
    kept = cell(f"index: {name}", "everything")
    chance = random.Random(name)
    with Cache(root, memory=0) as live:
        for number in range(RUNS * scale):
            damage(root / "index.sqlite", chance)
            if number % 2:
                look_through(root, live, kept, f"{name}, run {number}, open handle")
            else:
                with Cache(root, memory=0) as fresh:
                    look_through(root, fresh, kept, f"{name}, run {number}")
    kept.check(RUNS)


@pytest.mark.parametrize("damage", LEDGER_DAMAGE)
def test_a_damaged_ledger_costs_a_walk(
    root: Path, cell: Callable[[str, str], Cell], damage: Damage, scale: int
) -> None:
    name = damage.__name__.replace("_", " ")
    kept = cell(f"ledger: {name}", "everything")
    chance = random.Random(name)
    with Cache(root, memory=0) as live:
        for number in range(RUNS * scale):
            # So that it holds records when it is damaged.
            assert live.put(key(1), content(1)) and live.put(key(3), content(3))
            damage(root / "ledger", chance)
            if number % 2:
                look_through(root, live, kept, f"{name}, run {number}, open handle")
            else:
                with Cache(root, memory=0) as fresh:
                    look_through(root, fresh, kept, f"{name}, run {number}")
    kept.check(RUNS)


def test_both_damaged_at_once(root: Path, cell: Callable[[str, str], Cell], scale: int) -> None:
    kept = cell("index and ledger damaged", "everything")
    chance = random.Random(5)
    for number in range(RUNS * scale):
        index, ledger = chance.choice(INDEX_DAMAGE), chance.choice(LEDGER_DAMAGE)
        index(root / "index.sqlite", chance)
        ledger(root / "ledger", chance)
        with Cache(root, memory=0) as cache:
            look_through(root, cache, kept, f"run {number}: {index.__name__}, {ledger.__name__}")
    kept.check(RUNS)


def test_a_flipped_bit_in_the_index_serves_nothing_wrong(
    root: Path, cell: Callable[[str, str], Cell], scale: int
) -> None:
    """SQLite has no checksums, so a flip may pass unnoticed and cost an entry its blobs: a miss, never more.

    Whether entries are lost is therefore not asked, only that none is wrong, nothing
    raises, and that the store goes on with right accounts.
    """
    kept = cell("index: flipped bit", "everything")
    chance = random.Random(6)
    for number in range(RUNS * 3 * scale):
        flipped_bit(root / "index.sqlite", chance)
        with Cache(root, memory=0) as cache:
            look_through(root, cache, kept, f"run {number}", all_held=False)
            for n in range(HELD):
                if cache.get(key(n)) is None:
                    assert cache.put(key(n), content(n))
    kept.check(RUNS)


def test_the_cap_holds_though_the_index_is_gone_again_and_again(
    root: Path, cell: Callable[[str, str], Cell], scale: int
) -> None:
    kept = cell("index missing, damaged", "put, evicting")
    chance = random.Random(7)
    cap = audit(root).bytes
    with Cache(root, memory=0, max_size=cap, policy="lru") as cache:
        for number in range(RUNS * scale):
            chance.choice(INDEX_DAMAGE)(root / "index.sqlite", chance)
            kept.runs += 1
            try:
                n = 1000 + number
                if not cache.put(key(n), content(n)):
                    kept.harm("broken", f"run {number}: {cache.stats()}")
                entry = cache.get(key(n))
                if entry is None or dict(entry.items()) != content(n):
                    kept.harm("lost", f"run {number}: the entry just put")
            except Exception as error:
                kept.harm("raised", f"run {number}: {type(error).__name__}: {error}")
            if audit(root).bytes > cap:
                kept.harm("accounts", f"run {number}: {audit(root)} over a cap of {cap}")
    kept.check(RUNS)
