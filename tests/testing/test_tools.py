"""The tools that break things break what they say, and put it back."""

from __future__ import annotations

import ast
import errno
import os
import signal
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hotstart.testing
from hotstart import Cache, Key
from hotstart.store import files
from hotstart.store.index import Index, IndexGoneError
from hotstart.testing import OPERATIONS, FailingIO, KillingIO, SlowIO, audit, open_descriptors

if TYPE_CHECKING:
    from tests.conftest import Child

KEY = Key("tools", n=1)


def test_every_system_call_of_the_store_can_be_made_to_fail() -> None:
    """Whoever adds a call to the seam adds it here too, or the matrix does not ask about it."""
    calls = {
        name for name, value in vars(files).items() if isinstance(value, types.BuiltinFunctionType) and name[0] != "_"
    }
    assert calls == set(OPERATIONS) - {"sqlite"}


def test_the_store_makes_no_system_call_beside_the_seam() -> None:
    """``os.open`` and its kin belong to ``files``; elsewhere only paths, names and flags of ``os`` are used."""
    allowed = {"path", "fspath", "PathLike", "getpid", "stat_result", "F_OK"}
    # In a child just forked, where the seam may be the parent's: see Flights.after_fork.
    allowed_in = {"flight.py": {"close"}}
    for source in Path(files.__file__).parent.glob("*.py"):
        used = {
            node.attr
            for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
        }
        if source.name != "files.py":
            beside = used - allowed - allowed_in.get(source.name, set())
            assert not beside, f"{source.name} calls os.{', os.'.join(beside)}"


def test_counting_changes_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path / "store", memory=0) as cache, FailingIO() as io:
        assert cache.put(KEY, {"x": b"1"})
        puts = io.calls
        assert cache.get(KEY) is not None
    assert puts > 5 and io.calls > puts
    assert io.failed == 0
    assert io.log.count("open") >= 2
    assert files.open is os.open and files.rename is os.replace


def test_exactly_the_named_call_fails(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"content")
    with FailingIO(errno.EDQUOT, at=2, only=("open",)) as io:
        os.close(files.open(str(target), os.O_RDONLY))
        with pytest.raises(OSError, match="quota") as caught:
            files.open(str(target), os.O_RDONLY)
        os.close(files.open(str(target), os.O_RDONLY))
        assert files.stat(str(target)).st_size == 7
    assert caught.value.errno == errno.EDQUOT
    assert (io.calls, io.failed) == (3, 1)


def test_onwards_means_every_call_from_there(tmp_path: Path) -> None:
    with FailingIO(errno.EIO, at=2, onwards=True, only=("stat",)) as io:
        files.stat(str(tmp_path))
        for _ in range(3):
            with pytest.raises(OSError):
                files.stat(str(tmp_path))
    assert io.failed == 3
    files.stat(str(tmp_path))


def test_a_failing_close_closes_and_a_failing_access_says_no(tmp_path: Path) -> None:
    before = open_descriptors()
    with FailingIO(at=1, onwards=True, only=("close", "access")):
        fd = files.open(str(tmp_path), os.O_RDONLY)
        with pytest.raises(OSError):
            files.close(fd)
        assert files.access(str(tmp_path), os.F_OK) is False
    assert open_descriptors() == before


@pytest.mark.parametrize("call", ["write", "writev", "pwrite"])
def test_a_torn_write_leaves_half(tmp_path: Path, call: str) -> None:
    path = tmp_path / "file"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    arguments = {"write": (b"12345678",), "writev": ([b"1234", b"5678"],), "pwrite": (b"12345678", 0)}[call]
    with FailingIO(errno.ENOSPC, at=1, torn=True), pytest.raises(OSError):
        getattr(files, call)(fd, *arguments)
    os.close(fd)
    assert path.read_bytes() == b"1234"


def test_sqlite_fails_as_sqlite_does(tmp_path: Path) -> None:
    path = str(tmp_path / "index.sqlite")
    index = Index(path, create=True)
    with FailingIO(errno.ENOSPC, at=1, only=("sqlite",)):
        with pytest.raises(IndexGoneError, match="full"):
            index.begin()
        index.begin()
        index.commit()
    with FailingIO(at=1, only=("sqlite",)), pytest.raises(IndexGoneError, match="unable to open"):
        Index(path)
    index.close()
    Index(path).close()


def test_they_nest_and_are_gone_afterwards(tmp_path: Path) -> None:
    before = {name: getattr(files, name) for name in OPERATIONS if name != "sqlite"}, Index.__init__, Index._run
    with FailingIO(only=("stat",)) as outer, FailingIO(at=1, only=("stat",)) as inner, SlowIO(0.0) as slow:
        with pytest.raises(OSError):
            files.stat(str(tmp_path))
        files.stat(str(tmp_path))
    assert (outer.calls, inner.calls, slow.calls) == (1, 2, 2)
    after = {name: getattr(files, name) for name in OPERATIONS if name != "sqlite"}, Index.__init__, Index._run
    assert after == before


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="no such operation: frobnicate"):
        FailingIO(only=("frobnicate",))


def test_killing_kills_at_the_named_call(tmp_path: Path, fork: Callable[..., Child]) -> None:
    def in_the_child(after: bool) -> None:
        with KillingIO(1, after=after, only=("mkdir",)):
            files.mkdir(str(tmp_path / f"{after}"))

    for after in (False, True):
        status = fork(in_the_child, after).wait()
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert (tmp_path / f"{after}").exists() is after


def test_an_audit_counts_what_is_there(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Cache(root, memory=0) as cache:
        for n in range(3):
            cache.put(Key("tools", n=n), {"x": b"x", "blob": bytes(300_000)})
        (root / "tmp" / "left").write_bytes(b"12345")
        (root / "entries" / "ab").mkdir(exist_ok=True)
        (root / "entries" / "ab" / "stranger").write_bytes(b"not counted")
        found = audit(root)
        stats = cache.stats()
    assert (found.entries, found.bytes) == (3, stats["bytes"])
    assert (found.temporary, found.temporary_bytes) == (["tmp/left"], 5)


def test_all_names_load() -> None:
    for name in hotstart.testing.__all__:
        assert getattr(hotstart.testing, name) is not None
    with pytest.raises(AttributeError):
        hotstart.testing.nothing  # noqa: B018
