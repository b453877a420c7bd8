"""A shared directory as a remote: the contract, and what only a file system can do to it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hotstart.remote.contract import AbsentError, BrokenError, RefusedError
from hotstart.remote.directory import Directory
from hotstart.testing import FailingIO
from hotstart.testing.remote import RemoteConformance


class TestDirectory(RemoteConformance):
    def make_remote(self, tmp_path: Path, *, read_only: bool = False) -> Directory:
        return Directory(str(tmp_path / "shared"), read_only=read_only)


def test_reading_makes_nothing(tmp_path: Path) -> None:
    remote = Directory(str(tmp_path / "shared"))
    with pytest.raises(AbsentError):
        remote.get("a", 1)
    assert list(remote.list("")) == []
    assert not (tmp_path / "shared").exists()


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "a").symlink_to(tmp_path / "secret")
    remote = Directory(str(tmp_path / "shared"))
    with pytest.raises(BrokenError):
        remote.get("a", 100)
    assert list(remote.list("")) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user whom permissions bind")
def test_a_directory_that_is_not_ours_refuses(tmp_path: Path) -> None:
    remote = Directory(str(tmp_path / "shared"))
    assert remote.put("a", b"1")
    (tmp_path / "shared" / ".hotstart").chmod(0o500)
    with pytest.raises(RefusedError) as caught:
        remote.put("b", b"1")
    assert caught.value.cause == "denied"
    (tmp_path / "shared" / ".hotstart").chmod(0o700)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    remote = Directory(str(tmp_path / "shared"))
    assert remote.put("a", b"1")
    assert not remote.put("a", b"2")
    assert remote.put("a", b"3", replaces=remote.get("a", 1).tag)
    assert [path.name for path in (tmp_path / "shared" / ".hotstart").iterdir()] == ["lock"]


def test_a_full_disk_is_a_refusal(tmp_path: Path) -> None:
    remote = Directory(str(tmp_path / "shared"))
    with FailingIO(errno.ENOSPC, at=1, only=["writev"]), pytest.raises(RefusedError) as caught:
        remote.put("a", b"1")
    assert caught.value.cause == "full"
    assert remote.put("a", b"1")
