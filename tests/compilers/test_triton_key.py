"""Triton's hash of itself is remembered, and is Triton's own to the letter: it is part of the key of every kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hotstart.compilers import triton_key
from hotstart.keys import memo

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("triton", reason="needs Triton")

PROGRAM = """
import os, sys
import triton
from triton.runtime import cache, autotuner
from hotstart.compilers.triton_key import remember

real, root = cache.triton_key, os.path.dirname(triton.__file__)
if sys.argv[2] == "late":
    cache.triton_key()
assert remember(sys.argv[1]) is (sys.argv[2] != "late")
assert remember(sys.argv[1]) is False, "not twice"
read = set()
sys.addaudithook(lambda event, found: read.add(str(found[0])) if event == "open" else None)
found = cache.triton_key()
assert autotuner.triton_key is cache.triton_key
print(found)
print(sum(path.startswith(root) for path in read))
assert found == real()
"""


def start(directory: Path, how: str = "") -> tuple[str, int]:
    """What a fresh process gets for a hash, and how many of Triton's files it opened for it."""
    command = [sys.executable, "-c", PROGRAM, str(directory), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr
    found, opened = done.stdout.split()
    return found, int(opened)


def test_the_next_process_has_the_same_hash_and_reads_none_of_tritons_files(tmp_path: Path) -> None:
    first, opened = start(tmp_path / "memo")
    assert opened > 10
    assert start(tmp_path / "memo") == (first, 0)


def test_a_memo_that_is_damaged_or_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    expected, _ = start(tmp_path / "memo")
    (path,) = (tmp_path / "memo").iterdir()
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    found, opened = start(tmp_path / "memo")
    assert (found, opened > 10) == (expected, True)
    (tmp_path / "file").write_text("in the way")
    assert start(tmp_path / "file" / "memo")[0] == expected


def test_where_it_was_computed_already_nothing_is_touched(tmp_path: Path) -> None:
    start(tmp_path / "memo", "late")
    assert not (tmp_path / "memo").exists()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package as Triton is one, settled long enough for its identities to stand for it."""
    root = tmp_path / "triton"
    for name in ("__init__.py", "compiler/__init__.py", "compiler/code.py", "_C/libtriton.so", "backends/__init__.py"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (root / "backends/include").mkdir()
    (root / "backends/include/cuda.h").write_text("")
    return root


def asked(tree: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a process that starts now has the hash computed by Triton."""
    monkeypatch.setattr(memo, "SETTLING_NS", -(10**12))
    count = 0

    def real() -> str:
        nonlocal count
        count += 1
        return "hash"

    assert triton_key._remembered(real, str(tree), str(directory))() == "hash"
    return count


def replace(path: Path) -> None:
    """Other content of the same length, at the same time as before."""
    before = path.stat()
    path.write_text(path.read_text()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Any] = {
    "a source edited": lambda tree: (tree / "compiler/code.py").write_text("other"),
    "the library replaced, its time set back": lambda tree: replace(tree / "_C/libtriton.so"),
    "a source added": lambda tree: (tree / "compiler/more.py").write_text(""),
    "a source removed": lambda tree: (tree / "compiler/code.py").unlink(),
    "a source renamed": lambda tree: (tree / "compiler/code.py").rename(tree / "compiler/name.py"),
    "a directory becomes a package": lambda tree: (tree / "backends/include/__init__.py").write_text(""),
    "a compiled module beside a source": lambda tree: (tree / "compiler/code.so").write_text(""),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_triton_is_hashed_again(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    memos = tmp_path / "memo"
    assert [asked(tree, memos, monkeypatch) for _ in range(3)] == [1, 0, 0]
    CHANGES[change](tree)
    assert [asked(tree, memos, monkeypatch) for _ in range(2)] == [1, 0]


def test_another_triton_has_a_memo_of_its_own(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    asked(tree, tmp_path / "memo", monkeypatch)
    tree.rename(other)
    assert asked(other, tmp_path / "memo", monkeypatch) == 1


def test_a_file_changed_just_now_is_not_trusted_yet(tree: Path, tmp_path: Path) -> None:
    calls: list[int] = []

    def real() -> str:
        calls.append(1)
        return "hash"

    for _ in range(2):
        triton_key._remembered(real, str(tree), str(tmp_path / "memo"))()
    assert len(calls) == 2
