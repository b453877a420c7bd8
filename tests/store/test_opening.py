"""Opening a store: where it may live, who may write there, and what a newer hotstart left behind."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from hotstart import Cache, ContentStore, Key, SizeError, StoreError, UnsafeStoreError, UsageError

KEY = Key("test", n=1)


@pytest.fixture(autouse=True)
def _said_nothing_yet() -> None:
    from hotstart import log

    log._said.clear()


def test_a_new_store_is_private(tmp_path: Path) -> None:
    root = tmp_path / "a b" / "Ünï ☃"
    with Cache(root) as cache:
        assert cache.put(KEY, {"x": b"1", "large": bytes(300_000)})
    for path in [root, *root.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, file / "below"):
        with pytest.raises(StoreError, match="file"):
            Cache(path)
    with pytest.raises(StoreError, match="file"):
        ContentStore(file)


def test_a_store_others_can_write_is_refused(tmp_path: Path) -> None:
    with Cache(tmp_path / "s") as cache:
        cache.put(KEY, {})
    (tmp_path / "s").chmod(0o770)
    with pytest.raises(UnsafeStoreError, match="chmod 700"):
        Cache(tmp_path / "s")
    with pytest.raises(UnsafeStoreError):
        Cache(tmp_path / "s", read_only=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory to another user")
def test_a_store_of_somebody_else_is_refused(tmp_path: Path) -> None:
    with Cache(tmp_path / "s") as cache:
        cache.put(KEY, {})
    os.chown(tmp_path / "s", 12345, 12345)
    with pytest.raises(UnsafeStoreError):
        Cache(tmp_path / "s")


def test_under_a_shared_directory_we_make_our_own_child(tmp_path: Path) -> None:
    shared = tmp_path / "scratch"
    shared.mkdir()
    shared.chmod(0o777)
    with Cache(shared) as cache:
        assert cache.put(KEY, {"x": b"1"})
    child = shared / f"hotstart-{os.geteuid()}"
    assert stat.S_IMODE(child.stat().st_mode) == 0o700
    assert [path.name for path in shared.iterdir()] == [child.name]
    with Cache(shared) as cache:
        assert cache.get(KEY) is not None
    child.chmod(0o777)
    with pytest.raises(UnsafeStoreError):
        Cache(shared)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_read_only_layer_may_belong_to_root(tmp_path: Path) -> None:
    with Cache(tmp_path / "base") as cache:
        cache.put(KEY, {"x": b"1"})
    for path in [tmp_path, *tmp_path.parents]:
        path.chmod(path.stat().st_mode | 0o055)
    for path in (tmp_path / "base").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (tmp_path / "base").chmod(0o755)
    (tmp_path / "mine").mkdir()
    os.chown(tmp_path / "mine", 12345, 12345)
    (tmp_path / "mine").chmod(0o700)
    child = os.fork()
    if child == 0:
        try:
            os.setuid(12345)
            found = Cache(tmp_path / "mine", under=[tmp_path / "base"]).get(KEY)
            os._exit(0 if found is not None and found["x"] == b"1" else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_a_store_of_a_newer_version_is_left_untouched(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Cache(tmp_path / "s") as cache:
        cache.put(KEY, {"x": b"1"})
    (tmp_path / "s" / "format").write_text("hotstart store 2\n")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")}
    for _ in range(2):
        newer = Cache(tmp_path / "s", memory=0)
        assert newer.get(KEY) is None
        assert not newer.put(KEY, {"x": b"2"})
        assert newer.get_or_compile(KEY, lambda: {"x": b"3"})["x"] == b"3"
        assert len(newer) == 0
        newer.close()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")} == before
    assert capfd.readouterr().err.count("newer hotstart") == 1


def test_a_damaged_format_file_is_written_again(tmp_path: Path) -> None:
    with Cache(tmp_path / "s") as cache:
        cache.put(KEY, {"x": b"1"})
    for text in ("", "garbage", "hotstart store x"):
        (tmp_path / "s" / "format").write_text(text)
        with Cache(tmp_path / "s") as cache:
            assert cache.get(KEY) is not None
        assert (tmp_path / "s" / "format").read_text() == "hotstart store 1\n"


def test_read_only_serves_and_never_writes(tmp_path: Path) -> None:
    with Cache(tmp_path / "s") as cache:
        cache.put(KEY, {"x": b"1"})
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")}
    with Cache(tmp_path / "s", read_only=True, memory=0) as cache:
        found = cache.get(KEY)
        assert found is not None and found["x"] == b"1"
        assert not cache.put(Key("test", n=2), {"x": b"2"})
        assert cache.get_or_compile(Key("test", n=3), lambda: {"x": b"3"})["x"] == b"3"
        assert not cache.delete(KEY)
        assert not cache.pin(KEY)
        cache.clear()
        cache.gc(max_size=1)
        assert str(cache.explain(Key("test", n=4))) == "test: n 1 → 4"
        assert cache.digests() == []
        assert cache.stats()["refused"] == {"unwritable": 2}
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")} == before


def test_a_read_only_cache_that_is_not_there_is_empty(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "none", read_only=True)
    assert cache.get(KEY) is None
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        {"policy": "fifo"},
        {"max_size": 0},
        {"max_size": -1},
        {"max_size": "10 GB"},
        {"memory": -1},
        {"ttl": 0},
        {"ttl": -5},
        {"under": "one/path"},
    ],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises((UsageError, SizeError)) as caught:
        Cache(tmp_path / "s", **arguments)
    assert next(iter(arguments)) in str(caught.value)


@pytest.mark.parametrize("call", ["get", "put", "get_or_compile", "explain", "delete"])
def test_what_is_not_a_key_is_refused(tmp_path: Path, call: str) -> None:
    cache = Cache(tmp_path / "s")
    arguments: dict[str, list[Any]] = {"put": [{}], "get_or_compile": [dict]}
    with pytest.raises(UsageError, match=r"hotstart[.]Key"):
        getattr(cache, call)("name", *arguments.get(call, []))
