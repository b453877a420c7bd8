"""Protects files that may share blocks with the store: asking is harmless where the file system cannot, and where
it can the content stays what it was. Needs a file system with reflinks (XFS, Btrfs) for its second half."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotstart.launch.clone import can_clone, share


def test_asking_leaves_nothing_behind(tmp_path: Path) -> None:
    can_clone(str(tmp_path), str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert not can_clone(str(tmp_path / "absent"), str(tmp_path))


def test_sharing_changes_no_byte(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"x" * (1 << 20) + b"tail")
    two.write_bytes(b"x" * (1 << 20))
    shared = share(str(one), str(two), 1 << 20)
    assert shared in (0, 1 << 20)
    assert one.read_bytes() == b"x" * (1 << 20) + b"tail"
    assert two.read_bytes() == b"x" * (1 << 20)
    if not can_clone(str(tmp_path), str(tmp_path)):
        assert shared == 0
        pytest.skip("blocks are shared only on a file system with reflinks, such as XFS or Btrfs")
    assert shared == 1 << 20


def test_files_that_differ_or_are_missing_are_left_alone(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"x" * 8192)
    two.write_bytes(b"y" * 8192)
    assert share(str(one), str(two), 8192) == 0
    assert share(str(one), str(tmp_path / "absent"), 8192) == 0
    assert two.read_bytes() == b"y" * 8192
