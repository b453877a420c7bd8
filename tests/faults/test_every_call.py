"""At every I/O call of every operation in turn: the call fails, or the process is killed there.

ENOSPC, EROFS, EACCES, EIO, a disk that is gone for good, a write that ends half-way,
and SIGKILL. Protects contracts 2 and 3: never in the way, all or nothing; and what
must hold after any of it: right bytes, nothing lost that was promised, accounts that
are never too low, and a store that goes on as soon as the disk does.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hotstart import Cache, Key
from hotstart.drafting import draft_of
from hotstart.store.ledger import Ledger
from hotstart.testing import FailingIO, KillingIO, audit, open_descriptors

if TYPE_CHECKING:
    from tests.faults.conftest import Cell

ERRORS = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO)
WRITES = ("write", "writev", "pwrite")

#: Entries the store holds before the fault. The last is pinned.
HELD = 8
PINNED = HELD - 1
ABSENT, BLOBBY, SHARING, LATER = 100, 101, 102, 200

#: New ones that are put together with others.
MANY = (103, 105, 106)

#: Added to a number in the message that its newer version was put.
RENEWED = 50

#: Of a longer operation a spread of calls is made to fail, so many times the scale.
MOST_POINTS = 150

#: Short operations are repeated on one store until each cell has so many runs.
REPEATS = 200


def key(n: int) -> Key:
    return Key("fault", n=n)


def content(n: int) -> dict[str, bytes]:
    """Small alone, several with an empty one, or with two blobs of which one is shared by many entries."""
    if n == SHARING or n % 3 == 2:
        return {"small": b"s%d" % n * 20, "own": b"%04d" % n * 1500, "shared": b"shared" * 1000}
    if n == BLOBBY or n % 3 == 1:
        return {"a": b"a%d" % n * 50, "empty": b"", "b": b"b" * 900, **({"new": b"n" * 6000} if n == BLOBBY else {})}
    return {"only": b"o%d" % n * 100}


def newer(n: int) -> dict[str, bytes]:
    """What is put over an entry: larger, or smaller and without blobs, or of the very same size with other blobs."""
    if n == 0:
        return {"only": b"larger" * 200, "blob": b"only here" * 600}
    if n == 5:
        return {"small": b"no blobs"}
    return {name: bytes(255 - byte for byte in data) for name, data in content(n).items()}


class Trial:
    """One run: a copy of the store, a fault, and what is promised after it."""

    def __init__(self, root: Path, cap: int) -> None:
        self.root = root
        self.cap = cap
        #: Entries that must be there afterwards, and entries that may be.
        self.promised = set(range(HELD))
        self.possible = set(range(HELD))
        self.answers: list[tuple[int, object]] = []
        #: Entries of which the newer version must be there, if any is.
        self.renewed: set[int] = set()
        #: Where a child that may be killed says which puts had returned True.
        self.promises = -1

    def open(self) -> Cache:
        return Cache(self.root, max_size=self.cap, memory=0, policy="lru")

    def put(self, cache: Cache, n: int) -> None:
        self.possible.add(n)
        if cache.put(key(n), content(n)):
            self.promised.add(n)
            self._promise(n)

    def renew(self, cache: Cache, n: int) -> None:
        if cache.put(key(n), newer(n)):
            self.renewed.add(n)
            self._promise(RENEWED + n)

    def _promise(self, number: int) -> None:
        if self.promises >= 0:
            os.write(self.promises, bytes([number]))

    def is_right(self, n: int, entry: object) -> bool:
        found = dict(entry.items())  # type: ignore[attr-defined]
        return found == newer(n) or (n not in self.renewed and found == content(n))

    def get(self, cache: Cache, n: int) -> None:
        self.answers.append((n, cache.get(key(n))))


def get_inline(cache: Cache, trial: Trial) -> None:
    trial.get(cache, 0)


def get_blobs(cache: Cache, trial: Trial) -> None:
    trial.get(cache, 2)


def get_absent(cache: Cache, trial: Trial) -> None:
    trial.get(cache, ABSENT)


def get_damaged(cache: Cache, trial: Trial) -> None:
    trial.get(cache, 1)
    trial.promised.discard(1)


def get_damaged_blob(cache: Cache, trial: Trial) -> None:
    trial.get(cache, 5)
    trial.promised.discard(5)


def put_new(cache: Cache, trial: Trial) -> None:
    trial.put(cache, ABSENT)


def put_blobs(cache: Cache, trial: Trial) -> None:
    trial.put(cache, SHARING)
    trial.put(cache, BLOBBY)


def put_again(cache: Cache, trial: Trial) -> None:
    """Over an entry that is there: whatever happens, one of the two is, with all its blobs."""
    trial.put(cache, 5)
    for n in (0, 2, 5):
        trial.renew(cache, n)


def put_many(cache: Cache, trial: Trial) -> None:
    """Together: new ones, one with blobs, one that is there, and one that is there twice."""
    assert cache.disk is not None
    numbers = (ABSENT, *MANY, SHARING, 0, ABSENT)
    trial.possible.update(numbers)
    drafts = [draft_of(key(n), content(n), None, 0.0) for n in numbers]
    for n, is_kept in zip(numbers, cache.disk.write_many(drafts), strict=True):
        if is_kept:
            trial.promised.add(n)
            trial._promise(n)


def put_evicting(cache: Cache, trial: Trial) -> None:
    trial.promised = {PINNED}
    for n in (ABSENT, SHARING, BLOBBY):
        trial.possible.add(n)
        cache.put(key(n), content(n))


def put_many_evicting(cache: Cache, trial: Trial) -> None:
    put_many(cache, trial)
    trial.promised = {PINNED}


def get_or_compile(cache: Cache, trial: Trial) -> None:
    for n in (3, ABSENT, SHARING):
        entry = cache.get_or_compile(key(n), lambda n=n: content(n))  # type: ignore[misc]
        trial.possible.add(n)
        trial.answers.append((n, entry))
        if entry is None or dict(entry.items()) != content(n):
            raise AssertionError("get_or_compile did not return what was compiled")


def delete(cache: Cache, trial: Trial) -> None:
    for n in (0, 2):
        trial.promised.discard(n)
        cache.delete(key(n))


def clear(cache: Cache, trial: Trial) -> None:
    trial.promised.clear()
    cache.clear()


def rebuild(cache: Cache, trial: Trial) -> None:
    len(cache)


def put_rebuilding(cache: Cache, trial: Trial) -> None:
    put_evicting(cache, trial)


def collect(cache: Cache, trial: Trial) -> None:
    cache.gc()


def collect_to_size(cache: Cache, trial: Trial) -> None:
    trial.promised = {PINNED}
    cache.gc(max_size=trial.cap // 2)


def verify(cache: Cache, trial: Trial) -> None:
    trial.promised -= {1, 5}
    report = cache.verify()
    for digest in report["ok"]:
        assert digest != key(1).digest, "verify calls a damaged entry sound"


def look_after(cache: Cache, trial: Trial) -> None:
    """The rest of the face: none of it raises either."""
    cache.pin(key(0))
    cache.unpin(key(0))
    _ = key(0) in cache, key(ABSENT) in cache
    str(cache.explain(key(ABSENT)))
    cache.stats()
    cache.close()


def open_store(_cache: Cache, trial: Trial) -> None:
    with trial.open() as cache:
        trial.get(cache, 0)
        trial.put(cache, ABSENT)


OPERATIONS: dict[str, Callable[[Cache, Trial], None]] = {
    "get": get_inline,
    "get with blobs": get_blobs,
    "get, absent": get_absent,
    "get, damaged": get_damaged,
    "get, damaged blob": get_damaged_blob,
    "put": put_new,
    "put with blobs": put_blobs,
    "put again": put_again,
    "put many": put_many,
    "put many, evicting": put_many_evicting,
    "put, evicting": put_evicting,
    "put, rebuilding": put_rebuilding,
    "get_or_compile": get_or_compile,
    "delete": delete,
    "clear": clear,
    "rebuild": rebuild,
    "gc": collect,
    "gc to a size": collect_to_size,
    "verify": verify,
    "pin, explain, stats": look_after,
    "open": open_store,
}


@pytest.fixture
def stores(
    swift_path: Path, small_blobs: int, few_directories: Callable[[Iterable[Key], Iterable[bytes]], None]
) -> Iterator[Callable[[str], Trial]]:
    """Fresh copies of a store prepared for an operation."""
    numbers = [*range(HELD), ABSENT, BLOBBY, SHARING, LATER, LATER + 1, *MANY]
    blobs = [data for n in numbers for made in (content(n), newer(n)) for data in made.values()]
    few_directories(map(key, numbers), blobs)
    template = swift_path / "template"
    with Cache(template, memory=0) as cache:
        for n in range(HELD):
            assert cache.put(key(n), content(n))
        assert cache.pin(key(PINNED))
        cache.gc()
    full = audit(template).bytes
    number = 0

    def copy(operation: str) -> Trial:
        nonlocal number
        number += 1
        root = swift_path / f"copy{number}"
        shutil.copytree(template, root)
        tight = operation in ("put, evicting", "put many, evicting", "put, rebuilding")
        if operation in ("get, damaged", "verify"):
            _flip(entry_file(root, 1), -1)
        if operation in ("get, damaged blob", "verify"):
            _flip(max((root / "blobs").glob("??/??/*"), key=lambda path: path.read_bytes().startswith(b"0005")), 0)
        if operation == "rebuild":
            (root / "ledger").unlink()
        if operation == "put, rebuilding":
            (root / "index.sqlite").write_bytes(b"no database at all" * 300)
        return Trial(root, full + 100 if tight else full * 10)

    yield copy


def entry_file(root: Path, n: int) -> Path:
    digest = key(n).digest
    return root / "entries" / digest[:2] / digest[2:]


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def run(trial: Trial, operation: str, io: FailingIO, cell: Cell) -> None:
    """The operation under the fault, then everything that must hold."""
    cell.runs += 1
    before = open_descriptors()
    cache = trial.open()
    with io:
        try:
            OPERATIONS[operation](cache, trial)
            cache.close()
        except Exception as error:
            cell.harm("raised", f"{_where(io)}: {type(error).__name__}: {error}")
    cache.close()
    opened = open_descriptors() - before
    if opened:
        cell.harm("leaked", f"{_where(io)}: {sorted(opened)}")
    # What could not be unlinked is left for the sweep; anything else is a leak.
    unlinkable = not (io.onwards or (io.failed and io.log[io.at - 1] in ("unlink", "scandir", "listdir")))
    truth = audit(trial.root)
    if truth.temporary and unlinkable:
        cell.harm("leaked", f"{_where(io)}: {truth.temporary}")
    _check_ledger(trial, _where(io), cell)
    for n, entry in trial.answers:
        _compare(trial, n, entry, _where(io), cell)
    _check_afterwards(trial, cache, _where(io), cell)


def run_killed(trial: Trial, operation: str, io: KillingIO, cell: Cell) -> None:
    """The operation in a child that dies at one call, then everything that must hold."""
    cell.runs += 1
    reader, trial.promises = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with trial.open() as cache, io:
                OPERATIONS[operation](cache, trial)
        finally:
            os._exit(0)  # not reached if the call was
    os.close(trial.promises)
    _, status = os.waitpid(child, 0)
    promised = os.read(reader, 100)
    os.close(reader)
    where = f"killed at call {io.at}" + (", in mid-write" if io.torn else "")
    if not os.WIFSIGNALED(status):
        cell.harm("broken", f"{where}: the child was not killed: there was no such call")
    if operation in ("put, evicting", "put many, evicting", "put, rebuilding", "gc to a size"):
        trial.promised = {PINNED}
    elif operation == "clear":
        trial.promised = set()
    else:
        trial.promised -= _UNSURE.get(operation, set())
        trial.promised |= {n for n in promised if not RENEWED <= n < ABSENT}
        trial.renewed |= {n - RENEWED for n in promised if RENEWED <= n < ABSENT}
    trial.possible |= {ABSENT, SHARING, BLOBBY, *MANY}
    _check_ledger(trial, where, cell)
    _check_afterwards(trial, trial.open(), where, cell)
    # Nobody comes back for the temporary files of the dead: they go when they are old.
    for directory in (trial.root / "tmp", trial.root / "blobs" / "tmp"):
        for path in directory.glob("*"):
            os.utime(path, (0, 0))
    with trial.open() as cache:
        cache.put(key(LATER), content(LATER))
    left = audit(trial.root).temporary
    if left:
        cell.harm("leaked", f"{where}: {left}")


#: What may be gone afterwards because the operation was about to remove it, or it is damaged.
_UNSURE = {
    "delete": {0, 2},
    "get, damaged": {1},
    "get, damaged blob": {5},
    "verify": {1, 5},
}


def _check_ledger(trial: Trial, where: str, cell: Cell) -> None:
    truth = audit(trial.root)
    known = Ledger(f"{trial.root}/ledger").peek()
    if known is not None and known[1] < truth.bytes:
        cell.harm("accounts", f"{where}: the ledger says {known[1]} bytes of {truth.bytes}")


def _check_afterwards(trial: Trial, same: Cache, where: str, cell: Cell) -> None:
    """The fault is gone: nothing promised is missing, and old and new handles work, with right accounts."""
    with trial.open() as fresh:
        _read_all(trial, fresh, where, cell)
        for number, cache in enumerate((same, fresh)):
            if not cache.put(key(LATER + number), content(LATER + number)) or fresh.get(key(LATER + number)) is None:
                cell.harm("broken", f"{where}: put says no through handle {number}: {cache.stats()}")
        same.close()
        fresh.gc()
        stats, truth = fresh.stats(), audit(trial.root)
        if (stats["entries"], stats["bytes"]) != (truth.entries, truth.bytes):
            cell.harm("accounts", f"{where}: after gc {stats['entries']}, {stats['bytes']} for {truth}")
        if trial.cap > truth.bytes * 2:  # else something may have been evicted by now
            _read_all(trial, fresh, f"{where}, after gc", cell)


def _read_all(trial: Trial, cache: Cache, where: str, cell: Cell) -> None:
    for n in sorted(trial.possible):
        entry = cache.get(key(n))
        _compare(trial, n, entry, where, cell)
        if entry is None and n in trial.promised:
            cell.harm("lost", f"{where}: entry {n}; {cache.stats()}")


def _compare(trial: Trial, n: int, entry: object, where: str, cell: Cell) -> None:
    if entry is not None and not trial.is_right(n, entry):
        cell.harm("wrong", f"{where}: entry {n}")


def _where(io: FailingIO) -> str:
    name = io.log[io.at - 1] if len(io.log) >= io.at > 0 else "none"
    extent = " and all after it" if io.onwards else ""
    return f"{errno.errorcode[io.error]} at call {io.at} ({name}){extent}"


def points(calls: int, scale: int) -> list[int]:
    """Every call; of very many a spread, always with the first and the last ones."""
    most = MOST_POINTS * scale
    if calls <= most:
        return list(range(1, calls + 1))
    step = calls / (most - 40)
    return sorted({*range(1, 21), *(int(1 + n * step) for n in range(most - 40)), *range(calls - 19, calls + 1)})


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_error_at_any_io_call_costs_at_most_that_call(
    operation: str, stores: Callable[[str], Trial], cell: Callable[[str, str], Cell], scale: int
) -> None:
    """A fresh store for each; the four errors take turns, all of them at every call from a scale of 4 on."""
    counting = FailingIO()
    run(stores(operation), operation, counting, dry := cell("no fault", operation))
    dry.check()
    assert counting.calls, "nothing went through the seam: there is nothing to make fail"
    faults = [
        (errno.errorcode[ERRORS[(at + turn) % 4]], FailingIO(ERRORS[(at + turn) % 4], at=at))
        for turn in range(min(scale, 4))
        for at in points(counting.calls, scale)
    ]
    faults += [
        ("disk gone for good", FailingIO(ERRORS[at // 2 % 4], at=at, onwards=True))
        for at in points(counting.calls, scale)
    ]
    writes = sum(name in WRITES for name in counting.log)
    faults += [
        ("ENOSPC in mid-write", FailingIO(errno.ENOSPC, at=at, only=WRITES, torn=True)) for at in points(writes, scale)
    ]
    for name, io in faults:
        trial = stores(operation)
        run(trial, operation, io, cell(name, operation))
        shutil.rmtree(trial.root)
    for name in {name for name, _ in faults}:
        cell(name, operation).check()


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name not in ("get", "get, absent")])
def test_a_process_killed_at_any_io_call_loses_at_most_what_it_was_writing(
    operation: str, stores: Callable[[str], Trial], cell: Callable[[str, str], Cell], scale: int
) -> None:
    counting = FailingIO()
    trial = stores(operation)
    with trial.open() as cache, counting:
        OPERATIONS[operation](cache, trial)
    kills = [KillingIO(at) for at in points(counting.calls, scale)]
    writes = sum(name in WRITES for name in counting.log)
    kills += [KillingIO(at, torn=True, only=WRITES) for at in points(writes, scale)]
    kept = cell("SIGKILL", operation)
    for io in kills:
        trial = stores(operation)
        run_killed(trial, operation, io, kept)
        shutil.rmtree(trial.root)
    kept.check()


def test_get_put_and_get_or_compile_survive_every_error_hundreds_of_times(
    stores: Callable[[str], Trial], cell: Callable[[str, str], Cell], scale: int
) -> None:
    """On one store that lives through all of it; looked through after every round."""
    trial = stores("get")
    trial.cap = 1 << 30  # nothing is evicted: whatever is missing is lost
    for operation in ("get", "get with blobs", "put", "put with blobs", "put again", "get_or_compile", "delete"):
        for error in ERRORS:
            kept = cell(errno.errorcode[error], operation)
            rounds = 0
            while kept.runs < REPEATS * scale:
                io = FailingIO(error)
                while io.failed or not io.at:
                    io = FailingIO(error, at=io.at + 1, onwards=rounds % 4 == 3)
                    with trial.open() as cache:
                        with io:
                            try:
                                OPERATIONS[operation](cache, trial)
                            except Exception as problem:
                                kept.harm("raised", f"{_where(io)}: {type(problem).__name__}: {problem}")
                        kept.runs += 1
                        for n in (ABSENT, BLOBBY, SHARING):
                            cache.delete(key(n))
                            trial.promised.discard(n)
                for n, entry in trial.answers:
                    _compare(trial, n, entry, _where(io), kept)
                trial.answers.clear()
                rounds += 1
                _heal(trial, io, kept)
            kept.check(REPEATS)
    with trial.open() as cache:
        cache.gc()
        stats, truth = cache.stats(), audit(trial.root)
        assert (stats["entries"], stats["bytes"]) == (truth.entries, truth.bytes)


def _heal(trial: Trial, io: FailingIO, cell: Cell) -> None:
    """Between two rounds: what was promised is there, what was deleted comes back."""
    with trial.open() as cache:
        for n in range(HELD):
            entry = cache.get(key(n))
            _compare(trial, n, entry, _where(io), cell)
            if entry is None and n in trial.promised:
                cell.harm("lost", f"{_where(io)}: entry {n}; {cache.stats()}")
            if entry is None and not cache.put(key(n), content(n)):
                cell.harm("broken", f"{_where(io)}: entry {n}; {cache.stats()}")
            if entry is not None and n in trial.renewed:
                assert cache.put(key(n), content(n))
        trial.promised, trial.renewed = set(range(HELD)), set()
