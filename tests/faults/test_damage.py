"""Bytes on the disk that are not what was written: nothing wrong is served, and the next put heals.

Protects contract 1 for every region of an entry's file and of a blob's, for files
cut, zeroed, copied to another name or linked, and for entries of another version;
and contract 4 for an index and a ledger in any state.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hotstart import Cache, Key
from hotstart.store.entry import _HEAD_SIZE, Summary
from hotstart.testing import audit

if TYPE_CHECKING:
    from tests.faults.conftest import Cell

RUNS = 300

ONE, SEVERAL, BLOBS, EMPTY, NEIGHBOUR = "one artifact", "several", "blobs", "empty", "neighbour"

CONTENT = {
    ONE: {"cubin": bytes(range(256)) * 12},
    SEVERAL: {"ptx": b"ptx" * 100, "log": b"", "größe/ptx": b"\x00" * 700, "cubin": b"\x7fELF" * 200},
    BLOBS: {"small": b"s" * 64, "kernel.so": b"so" * 4000, "weights": b"shared" * 2000},
    EMPTY: {},
    NEIGHBOUR: {"weights": b"shared" * 2000, "other": b"o" * 100},
}


def key(shape: str) -> Key:
    return Key("damage", name=shape, shape=shape)


class Store:
    """A store with one entry of each shape, and the files they live in."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cache = Cache(root, memory=0)
        for shape, content in CONTENT.items():
            assert self.cache.put(key(shape), content, meta={"shape": shape}, cost=1.0)

    def file(self, shape: str) -> Path:
        digest = key(shape).digest
        return self.root / "entries" / digest[:2] / digest[2:]

    def blob(self, data: bytes) -> Path:
        from hotstart.keys.digest import digest_of

        address = digest_of(data)
        return self.root / "blobs" / address[:2] / address[2:4] / address[4:]

    def regions(self, shape: str) -> dict[str, range]:
        """Where head, table, about and inline lie in an entry's file."""
        path = self.file(shape)
        fd = os.open(path, os.O_RDONLY)
        try:
            found = Summary(fd)
        finally:
            os.close(fd)
        data = path.read_bytes()
        about = data.index(found._about)
        end = about + len(found._about)
        return {
            "head": range(_HEAD_SIZE),
            "table": range(_HEAD_SIZE, about),
            "about": range(about, end),
            "inline": range(end, len(data)),
        }

    def check(self, shape: str, cell: Cell, what: str) -> None:
        """Read what was damaged: a miss, or the right bytes; then put it again, and it is whole."""
        cell.runs += 1
        try:
            for attempt in range(2):
                self._read(shape, cell, f"{what}, read {attempt}")
            self._read(NEIGHBOUR if shape != NEIGHBOUR else ONE, cell, what)
            for again in (shape, NEIGHBOUR):  # which shares a blob, and may have gone with it
                if not self.cache.put(key(again), CONTENT[again], meta={"shape": again}, cost=1.0):
                    cell.harm("broken", f"{what}: put says no: {self.cache.stats()}")
                entry = self.cache.get(key(again))
                if entry is None or dict(entry.items()) != CONTENT[again]:
                    cell.harm("broken", f"{what}: not healed by a put: {self.cache.stats()}")
        except Exception as error:
            cell.harm("raised", f"{what}: {type(error).__name__}: {error}")

    def _read(self, shape: str, cell: Cell, what: str) -> None:
        entry = self.cache.get(key(shape))
        if entry is not None and (dict(entry.items()) != CONTENT[shape] or entry.meta != {"shape": shape}):
            cell.harm("wrong", what)

    def settle(self, cell: Cell) -> None:
        """At the end of a cell: nothing lost, accounts right."""
        for shape, content in CONTENT.items():
            entry = self.cache.get(key(shape))
            if entry is None or dict(entry.items()) != content:
                cell.harm("lost", f"at the end: {shape}")
        self.cache.gc()
        stats, truth = self.cache.stats(), audit(self.root)
        if (stats["entries"], stats["bytes"]) != (truth.entries, truth.bytes):
            cell.harm("accounts", f"{stats['entries']}, {stats['bytes']} for {truth}")
        if truth.temporary:
            cell.harm("leaked", str(truth.temporary))


@pytest.fixture
def store(swift_path: Path, small_blobs: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("HOTSTART_LOG", "off")
    store = Store(swift_path / "store")
    yield store
    store.cache.close()


def rewrite(path: Path, data: bytes) -> None:
    """In place, as a bad sector would: same file, same name."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


def flipped(data: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


@pytest.mark.parametrize("shape", [ONE, SEVERAL, BLOBS, EMPTY])
@pytest.mark.parametrize("region", ["head", "table", "about", "inline"])
def test_a_flipped_bit_in_an_entry_is_a_miss(
    store: Store, cell: Callable[[str, str], Cell], shape: str, region: str, scale: int
) -> None:
    places = store.regions(shape)[region]
    if not places:
        return  # no table and no inline bytes in an empty entry
    kept = cell(f"bit flip in {region}", "get, put")
    chance = random.Random(f"{shape} {region}")
    for _ in range(RUNS // 3 * scale):
        at, bit = chance.choice(places), chance.randrange(8)
        path = store.file(shape)
        data = flipped(path.read_bytes(), at, bit)
        rewrite(path, data)
        got = store.cache.get(key(shape))
        assert got is None, f"{shape}: a flip of bit {bit} at {at} is a hit"
        store.check(shape, kept, f"{shape}, byte {at}, bit {bit}")
    store.settle(kept)
    kept.check()


@pytest.mark.parametrize("part", ["payload", "trailer"])
def test_a_flipped_bit_in_a_blob_is_a_miss(
    store: Store, cell: Callable[[str, str], Cell], part: str, scale: int
) -> None:
    kept = cell(f"bit flip in a blob's {part}", "get, put")
    chance = random.Random(part)
    for number in range(RUNS * scale):
        content = CONTENT[BLOBS]["kernel.so" if number % 2 else "weights"]
        path = store.blob(content)
        data = path.read_bytes()
        at = chance.randrange(len(content)) if part == "payload" else chance.randrange(len(content), len(data))
        rewrite(path, flipped(data, at, chance.randrange(8)))
        if number % 3 == 0:
            # Put before anybody has read it: an entry must not be made to share a damaged blob.
            assert store.cache.put(key(NEIGHBOUR), CONTENT[NEIGHBOUR])
            assert store.cache.put(key(BLOBS), CONTENT[BLOBS], meta={"shape": BLOBS})
            for shape in (NEIGHBOUR, BLOBS):
                entry = store.cache.get(key(shape))
                if entry is None or dict(entry.items()) != CONTENT[shape]:
                    kept.harm("lost", f"byte {at}: {shape} was put over a damaged blob")
            store.cache.put(key(NEIGHBOUR), CONTENT[NEIGHBOUR], meta={"shape": NEIGHBOUR})
        store.check(BLOBS, kept, f"byte {at}")
    store.settle(kept)
    kept.check(RUNS)


@pytest.mark.parametrize("shape", [ONE, SEVERAL, BLOBS, EMPTY])
def test_a_file_cut_anywhere_is_a_miss(store: Store, cell: Callable[[str, str], Cell], shape: str, scale: int) -> None:
    kept = cell("truncated entry", "get, put")
    size = store.file(shape).stat().st_size
    edges = {edge for region in store.regions(shape).values() for edge in (region.start, region.stop)}
    lengths = {length for edge in edges for length in range(edge - 2, edge + 3) if 0 < length < size}
    lengths |= set(random.Random(shape).sample(range(1, size), min(150 * scale, size - 1)))
    for length in sorted(lengths):
        path = store.file(shape)
        os.truncate(path, length)
        assert store.cache.get(key(shape)) is None, f"{shape}: cut at {length} of {size} is a hit"
        store.check(shape, kept, f"{shape}, {length} of {size}")
    store.settle(kept)
    kept.check()


def test_a_blob_cut_anywhere_is_a_miss(store: Store, cell: Callable[[str, str], Cell], scale: int) -> None:
    kept = cell("truncated blob", "get, put")
    content = CONTENT[BLOBS]["kernel.so"]
    size = store.blob(content).stat().st_size
    lengths = [*range(70), *range(len(content) - 2, size), *random.Random(1).sample(range(size), 200 * scale)]
    for length in lengths:
        os.truncate(store.blob(content), length)
        assert store.cache.get(key(BLOBS)) is None, f"a blob cut at {length} of {size} is a hit"
        store.check(BLOBS, kept, f"{length} of {size}")
    store.settle(kept)
    kept.check(RUNS)


def test_a_file_of_no_length_is_a_miss(store: Store, cell: Callable[[str, str], Cell], scale: int) -> None:
    kept = cell("zero length", "get, put")
    for number in range(RUNS * scale):
        shape = (ONE, SEVERAL, BLOBS, EMPTY)[number % 4]
        os.truncate(store.blob(CONTENT[BLOBS]["weights"]) if shape == BLOBS else store.file(shape), 0)
        assert store.cache.get(key(shape)) is None
        store.check(shape, kept, shape)
    store.settle(kept)
    kept.check(RUNS)


def test_a_zeroed_block_is_a_miss(store: Store, cell: Callable[[str, str], Cell], scale: int) -> None:
    kept = cell("zeroed block", "get, put")
    chance = random.Random(2)
    for number in range(RUNS * scale):
        shape = (ONE, SEVERAL, BLOBS)[number % 3]
        path = store.blob(CONTENT[BLOBS]["kernel.so"]) if shape == BLOBS else store.file(shape)
        data = bytearray(path.read_bytes())
        block = chance.choice((16, 64, 512, 4096))
        at = chance.randrange(0, len(data), block)
        data[at : at + block] = bytes(len(data[at : at + block]))
        rewrite(path, bytes(data))
        store.check(shape, kept, f"{shape}, {block} bytes at {at}")
    store.settle(kept)
    kept.check(RUNS)


def test_an_entry_copied_under_another_key_is_a_miss(
    store: Store, cell: Callable[[str, str], Cell], scale: int
) -> None:
    kept = cell("copied under another key", "get, put")
    shapes = (ONE, SEVERAL, BLOBS, EMPTY)
    for number in range(RUNS * scale):
        shape, source = shapes[number % 4], shapes[(number + 1 + number // 4 % 3) % 4]
        if number % 2:
            store.cache.delete(key(shape))  # a place that is empty, as a poisoned copy would find it
            store.file(shape).parent.mkdir(exist_ok=True)
        shutil.copy(store.file(source), store.file(shape))
        assert store.cache.get(key(shape)) is None, f"the entry of {source} is served for {shape}"
        store.check(shape, kept, f"{source} as {shape}")
    store.settle(kept)
    kept.check(RUNS)


def test_a_blob_copied_under_another_address_is_a_miss(
    store: Store, cell: Callable[[str, str], Cell], scale: int
) -> None:
    kept = cell("blob under another address", "get, put")
    for _ in range(RUNS * scale):
        shutil.copy(store.blob(CONTENT[BLOBS]["kernel.so"]), store.blob(CONTENT[BLOBS]["weights"]))
        assert store.cache.get(key(BLOBS)) is None
        store.check(BLOBS, kept, "")
    store.settle(kept)
    kept.check(RUNS)


def test_an_entry_of_another_version_is_a_miss_and_left_alone(
    store: Store, cell: Callable[[str, str], Cell], scale: int
) -> None:
    kept = cell("another format version", "get, put")
    chance = random.Random(3)
    for number in range(RUNS * scale):
        shape = (ONE, SEVERAL, BLOBS, EMPTY)[number % 4]
        path = store.file(shape)
        data = bytearray(path.read_bytes())
        data[4:6] = chance.choice((0, 2, 3, 255, 256, 65535)).to_bytes(2, "little")
        rewrite(path, bytes(data))
        assert store.cache.get(key(shape)) is None, f"version {bytes(data[4:6])!r} is a hit"
        assert path.read_bytes() == bytes(data), "an entry of another version was moved or changed"
        store.check(shape, kept, f"{shape}, version {bytes(data[4:6])!r}")
    assert store.cache.stats()["other_version"] >= RUNS
    store.settle(kept)
    kept.check(RUNS)


def test_a_link_is_not_followed(store: Store, cell: Callable[[str, str], Cell], swift_path: Path, scale: int) -> None:
    kept = cell("symlinked entry or blob", "get, put")
    for number in range(RUNS * scale):
        path = store.file(ONE) if number % 2 else store.blob(CONTENT[BLOBS]["weights"])
        shape = ONE if number % 2 else BLOBS
        outside = swift_path / "outside"
        shutil.copy(path, outside)  # perfectly valid, but not in the store
        before = outside.read_bytes()
        path.unlink()
        path.symlink_to(outside if number % 3 else swift_path / "nothing there")
        assert store.cache.get(key(shape)) is None, "a link was followed"
        store.check(shape, kept, str(path))
        assert outside.read_bytes() == before
        assert not path.is_symlink()
    store.settle(kept)
    kept.check(RUNS)


def test_a_missing_blob_is_a_miss(store: Store, cell: Callable[[str, str], Cell], scale: int) -> None:
    kept = cell("blob missing", "get, put")
    for number in range(RUNS * scale):
        store.blob(CONTENT[BLOBS][("kernel.so", "weights")[number % 2]]).unlink()
        assert store.cache.get(key(BLOBS)) is None
        store.check(BLOBS, kept, "")
    store.settle(kept)
    kept.check(RUNS)


@pytest.mark.parametrize("shape", [SEVERAL, BLOBS])
def test_damage_anywhere_does_not_stop_a_rebuild(
    store: Store, cell: Callable[[str, str], Cell], shape: str, scale: int
) -> None:
    """The walk describes entries from their beginnings, before anybody has checked them."""
    kept = cell("damaged entry", "rebuild")
    whole = store.file(shape).read_bytes()
    end = store.regions(shape)["about"].stop
    chance = random.Random(shape)
    places = chance.sample(range(end), min(120 * scale, end))
    damages = [whole[:length] for length in sorted(chance.sample(range(end), min(120 * scale, end)))]
    damages += [flipped(whole, at, bit) for at in places for bit in (0, 7)]
    for data in damages:
        rewrite(store.file(shape), data)
        store.cache.close()
        (store.root / "ledger").unlink()
        kept.runs += 1
        try:
            with Cache(store.root, memory=0) as cache:
                if len(cache) != len(CONTENT):
                    kept.harm("accounts", f"{len(cache)} entries counted, of {len(CONTENT)}")
                entry = cache.get(key(NEIGHBOUR))
                if entry is None:
                    kept.harm("lost", "the neighbour, by a rebuild over a damaged entry")
                if not cache.put(key(ONE), CONTENT[ONE]):
                    kept.harm("broken", "put says no after a rebuild")
        except Exception as error:
            kept.harm("raised", f"{len(data)} of {len(whole)} bytes: {type(error).__name__}: {error}")
        rewrite(store.file(shape), whole)
    kept.check(RUNS // 2)


def test_a_stranger_in_the_store_stops_nothing(store: Store, cell: Callable[[str, str], Cell]) -> None:
    """Files that are not ours, with names that look nearly as if they were: neither counted nor in the way."""
    kept = cell("strangers' files", "rebuild, gc, verify")
    names = ["x", "README", "z" * 62, "Z" * 62, "0" * 61, "0" * 63, "é" * 62, ".nfs0000", "A" * 62]
    for directory in ("entries/ab", "entries/zz", "blobs/ab/cd", "blobs/ab", "pins", "flights", "tmp"):
        (store.root / directory).mkdir(parents=True, exist_ok=True)
        for name in (*names, "0" * 60 if directory == "blobs/ab/cd" else "1" * 61):
            if not (store.root / directory / name).exists():
                (store.root / directory / name).write_bytes(b"stranger")
    (store.root / "entries" / "file").write_bytes(b"stranger")
    (store.root / "entries" / "cd").write_bytes(b"stranger") if not (store.root / "entries" / "cd").exists() else None
    for name in ("ledger", "index.sqlite", ""):
        store.cache.close()
        if name:
            (store.root / name).unlink(missing_ok=True)
        kept.runs += 1
        try:
            assert len(store.cache) == len(CONTENT)
            assert store.cache.put(key(ONE), CONTENT[ONE])
            store.cache.gc()
            report = store.cache.verify()
            assert (len(report["ok"]), report["damaged"]) == (len(CONTENT), [])
            assert len(store.cache) == len(CONTENT)
        except Exception as error:
            kept.harm("raised", f"{name}: {type(error).__name__}: {error}")
    kept.check()
