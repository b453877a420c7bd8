"""The contract of a remote, as a class of tests. Give a factory and pytest does the rest:

    class TestMine(RemoteConformance):
        def make_remote(self, tmp_path, *, read_only=False):
            return Mine(...)

Every call of the factory within one test must open the same place, empty at first.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from ..errors import UsageError
from ..remote.contract import AbsentError, BrokenError, RefusedError, Remote, RemoteError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WHOLE = 1 << 30

BAD_NAMES: list[Any] = [
    "", "/", "/a", "a/", "a//b", "..", "a/../b", "../a", "./a", "a b", "a\0b", "a\\b", "ä", "a\n", "a?b", "a%2e", "*",
    "x" * 600, None, 5, b"a",
]  # fmt: skip


class RemoteConformance:
    """Named bytes, written once, read by anybody."""

    def make_remote(self, tmp_path: Path, *, read_only: bool = False) -> Remote:
        raise NotImplementedError("give a factory: def make_remote(self, tmp_path, *, read_only=False)")

    @pytest.fixture
    def remote(self, tmp_path: Path) -> Remote:
        return self.make_remote(tmp_path)

    @pytest.mark.parametrize("size", [0, 1, 1000, 70_000, 900_000])
    def test_what_was_put_is_what_is_read(self, remote: Remote, size: int) -> None:
        data = random.Random(size).randbytes(size)
        assert remote.put("a/b/c", data)
        found = remote.get("a/b/c", _WHOLE)
        assert (bytes(found.data), found.size) == (data, size)
        assert found.tag

    @pytest.mark.parametrize("data", [bytearray(b"abc"), memoryview(b"abc")], ids=["bytearray", "memoryview"])
    def test_everything_bytes_like_can_be_put(self, remote: Remote, data: Any) -> None:
        assert remote.put("a", data)
        assert bytes(remote.get("a", _WHOLE).data) == b"abc"

    def test_absent_is_its_own_error(self, remote: Remote) -> None:
        with pytest.raises(AbsentError):
            remote.get("no/such", _WHOLE)
        with pytest.raises(AbsentError):
            remote.get_range("no/such", 0, 1)

    def test_a_prefix_is_not_an_object(self, remote: Remote) -> None:
        assert remote.put("a/b", b"1")
        with pytest.raises(AbsentError):
            remote.get("a", _WHOLE)

    def test_no_more_is_read_than_the_limit(self, remote: Remote) -> None:
        assert remote.put("a", b"0123456789")
        found = remote.get("a", 4)
        assert (bytes(found.data), found.size) == (b"0123", 10)
        assert bytes(remote.get("a", 10).data) == b"0123456789"

    def test_ranges_are_exact_or_an_error(self, remote: Remote) -> None:
        assert remote.put("a", b"0123456789")
        assert bytes(remote.get_range("a", 3, 4)) == b"3456"
        assert bytes(remote.get_range("a", 9, 1)) == b"9"
        assert [bytes(part) for part in remote.get_ranges("a", [(8, 2), (0, 1), (4, 3)])] == [b"89", b"0", b"456"]
        assert b"".join(map(bytes, remote.stream("a", 2, 6))) == b"234567"
        for start, length in ((8, 3), (10, 1), (50, 2)):
            with pytest.raises(BrokenError):
                remote.get_range("a", start, length)

    def test_a_range_of_a_version_that_was_replaced_is_an_error(self, remote: Remote) -> None:
        assert remote.put("a", b"0123456789")
        tag = remote.get("a", 1).tag
        assert bytes(remote.get_range("a", 1, 2, tag)) == b"12"
        assert remote.put("a", b"abcdefghijk", replaces=tag)
        with pytest.raises(BrokenError):
            remote.get_range("a", 1, 2, tag)

    def test_put_creates_and_never_overwrites(self, remote: Remote) -> None:
        assert remote.put("a", b"first")
        assert not remote.put("a", b"second")
        assert not remote.put("a", b"first")
        assert bytes(remote.get("a", _WHOLE).data) == b"first"

    def test_of_many_who_create_one_does(self, tmp_path: Path, remote: Remote) -> None:
        start = threading.Barrier(8)
        won: list[int] = []

        def create(number: int) -> None:
            mine = self.make_remote(tmp_path)
            for turn in range(5):
                start.wait()
                if mine.put(f"race/{turn}", b"%d" % number):
                    won.append(turn)

        threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == list(range(5))

    def test_replacing_takes_the_version_that_was_seen(self, remote: Remote) -> None:
        assert remote.put("a", b"bad")
        tag = remote.get("a", _WHOLE).tag
        assert remote.put("a", b"good", replaces=tag)
        assert not remote.put("a", b"late", replaces=tag)
        assert bytes(remote.get("a", _WHOLE).data) == b"good"

    def test_nothing_is_replaced_where_nothing_is(self, remote: Remote) -> None:
        assert remote.put("a", b"1")
        tag = remote.get("a", _WHOLE).tag
        remote.delete(["a"])
        assert not remote.put("a", b"2", replaces=tag)

    def test_of_many_who_replace_one_does(self, tmp_path: Path, remote: Remote) -> None:
        assert remote.put("a", b"old")
        tag = remote.get("a", _WHOLE).tag
        won: list[int] = []

        def replace(number: int) -> None:
            if self.make_remote(tmp_path).put("a", b"new %d" % number, replaces=tag):
                won.append(number)

        threads = [threading.Thread(target=replace, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert bytes(remote.get("a", _WHOLE).data) == b"new %d" % won[0]

    def test_delete_is_repeatable(self, remote: Remote) -> None:
        for name in ("a", "b", "c/d"):
            assert remote.put(name, b"1")
        remote.delete(["a", "c/d", "never/was"])
        remote.delete(["a"])
        remote.delete([])
        assert [item.name for item in remote.list("")] == ["b"]
        assert remote.put("a", b"again")

    def test_a_listing_has_names_sizes_and_times(self, remote: Remote) -> None:
        before = time.time()
        for name, size in (("x/a", 1), ("x/b/c", 20), ("xy/d", 3), ("z", 4)):
            assert remote.put(name, bytes(size))
        found = {item.name: item for item in remote.list("x/")}
        assert {name: item.size for name, item in found.items()} == {"x/a": 1, "x/b/c": 20}
        assert all(abs(item.modified - before) < 60 for item in found.values())
        assert sorted(item.name for item in remote.list("")) == ["x/a", "x/b/c", "xy/d", "z"]
        assert list(remote.list("none/")) == []

    def test_many_are_listed(self, remote: Remote) -> None:
        names = {f"many/{number:04}" for number in range(120)}
        for name in names:
            assert remote.put(name, b"1")
        assert {item.name for item in remote.list("many/")} == names

    def test_many_are_got_at_once(self, remote: Remote) -> None:
        for number in range(12):
            assert remote.put(f"m/{number}", b"%d" % number)
        found = remote.get_many([f"m/{number}" for number in range(0, 24, 2)], 100)
        assert {name: bytes(item.data) for name, item in found.items()} == {
            f"m/{number}": b"%d" % number for number in range(0, 12, 2)
        }
        assert remote.get_many([], 100) == {}

    @pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:12])
    def test_names_that_could_go_elsewhere_are_misuse(self, remote: Remote, name: Any) -> None:
        for call in (
            lambda: remote.get(name, 1),
            lambda: remote.get_range(name, 0, 1),
            lambda: remote.put(name, b""),
            lambda: remote.delete([name]),
        ):
            with pytest.raises(UsageError):
                call()

    def test_read_only_refuses_and_reads(self, tmp_path: Path, remote: Remote) -> None:
        assert remote.put("a", b"1")
        other = self.make_remote(tmp_path, read_only=True)
        with pytest.raises(RefusedError):
            other.put("b", b"1")
        with pytest.raises(RefusedError):
            other.delete(["a"])
        assert bytes(other.get("a", _WHOLE).data) == b"1"

    def test_a_value_over_the_limit_is_refused_and_said_so(self, remote: Remote) -> None:
        if remote.max_value is None:
            return  # it takes any size
        with pytest.raises(RefusedError) as caught:
            remote.put("a", bytes(remote.max_value + 1))
        assert caught.value.cause == "oversize"
        with pytest.raises(AbsentError):
            remote.get("a", 1)

    def test_requests_are_counted(self, remote: Remote) -> None:
        before = remote.requests
        assert remote.put("a", b"1")
        remote.get("a", 1)
        assert remote.requests == before + 2

    def test_it_works_again_after_close_and_fork(self, remote: Remote) -> None:
        assert remote.put("a", b"1")
        remote.close()
        assert bytes(remote.get("a", 1).data) == b"1"
        remote.after_fork()
        assert bytes(remote.get("a", 1).data) == b"1"

    def test_every_error_names_its_cause(self, remote: Remote) -> None:
        with pytest.raises(RemoteError) as caught:
            remote.get("absent", 1)
        assert caught.value.cause == "absent"
        assert remote.shown in repr(remote)
