"""A source tree has one fingerprint wherever it lies, and another as soon as a source file differs."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotstart.errors import UncacheableError, UsageError
from hotstart.keys.project import project_fingerprint

if TYPE_CHECKING:
    from pathlib import Path


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


TREE = {"a.py": "1", "pkg/b.py": "2", "pkg/deep/c.cu": "3", "pkg/deep/d.h": ""}


def test_a_copy_elsewhere_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "one", TREE)
    shutil.copytree(root, tmp_path / "two" / "renamed")
    found = project_fingerprint(root)
    assert len(found) == 64
    assert project_fingerprint([str(tmp_path / "two" / "renamed")]) == found
    monkeypatch.chdir(root)
    assert project_fingerprint(".") == found
    os.utime(root / "a.py", (1, 1))
    (root / "a.py").chmod(0o700)
    (root / "empty").mkdir()
    assert project_fingerprint(root) == found


@pytest.mark.parametrize(
    "change",
    [
        {"a.py": "2"},
        {"new.py": ""},
        {"pkg/deep/c.cu": "3 "},
        {"pkg/deep/d.h": "\n"},
        {"data.json": "{}"},
        {".hidden": ""},
    ],
    ids=str,
)
def test_any_change_of_a_source_file_counts(tmp_path: Path, change: dict[str, str]) -> None:
    root = write(tmp_path, TREE)
    before = project_fingerprint(root)
    write(root, change)
    assert project_fingerprint(root) != before


def test_moving_and_exchanging_files_counts(tmp_path: Path) -> None:
    root = write(tmp_path / "root", TREE)
    seen = {project_fingerprint(root)}
    (root / "a.py").rename(root / "z.py")
    seen.add(project_fingerprint(root))
    (root / "z.py").rename(root / "pkg" / "a.py")
    seen.add(project_fingerprint(root))
    write(root, {"pkg/a.py": "2", "pkg/b.py": "1"})
    seen.add(project_fingerprint(root))
    (root / "pkg" / "a.py").unlink()
    seen.add(project_fingerprint(root))
    assert len(seen) == 5


def test_a_name_cannot_pass_for_content(tmp_path: Path) -> None:
    one = write(tmp_path / "one", {"a": "b", "c": "d"})
    other = write(tmp_path / "other", {"a": "bc", "d": ""})
    assert project_fingerprint(one) != project_fingerprint(other)


@pytest.mark.parametrize(
    "name",
    [
        *("__pycache__/a.pyc", "pkg/__pycache__/x", ".git/HEAD", "x.o", "libx.so.1", "kernel.cubin"),
        *("ext.so", "ext.cpython-311-aarch64-linux-gnu.so", ".mypy_cache/3.11/a.json", "my.egg-info/PKG-INFO"),
        *("venv/pyvenv.cfg", "venv/lib/a.py"),
    ],
)
def test_what_tools_write_does_not_count(tmp_path: Path, name: str) -> None:
    root = write(tmp_path, TREE)
    if name.startswith("venv"):
        write(root, {"venv/pyvenv.cfg": ""})
    before = project_fingerprint(root)
    write(root, {name: "anything"})
    assert project_fingerprint(root) == before


def test_further_patterns_leave_out_more(tmp_path: Path) -> None:
    root = write(tmp_path, {**TREE, "build/x.txt": "", "log.txt": "", "pkg/log.txt": ""})
    patterns = ["build/", "*.txt"]
    before = project_fingerprint(root, ignore=patterns)
    assert before == project_fingerprint(write(tmp_path, {"build/y": "", "pkg/deep/new.txt": ""}), ignore=patterns)
    assert before != project_fingerprint(root)
    one = project_fingerprint(root, ignore=["pkg/log.txt"])
    write(root, {"pkg/log.txt": "changed"})
    assert one == project_fingerprint(root, ignore=["pkg/log.txt"])
    write(root, {"log.txt": "changed"})
    assert one != project_fingerprint(root, ignore=["pkg/log.txt"])


def test_links_count_through_what_they_lead_to(tmp_path: Path) -> None:
    root = write(tmp_path / "root", TREE)
    outside = write(tmp_path / "outside", {"shared.py": "1", "more/x.py": "1"})
    (root / "link.py").symlink_to(outside / "shared.py")
    (root / "links").symlink_to(outside / "more")
    before = project_fingerprint(root)
    plain = tmp_path / "plain"
    shutil.copytree(root, plain, symlinks=False)
    assert project_fingerprint(plain) == before
    write(outside, {"shared.py": "2"})
    changed = project_fingerprint(root)
    write(outside, {"more/x.py": "2"})
    assert len({before, changed, project_fingerprint(root)}) == 3


def test_links_that_lead_nowhere_or_back_end(tmp_path: Path) -> None:
    root = write(tmp_path / "root", TREE)
    seen = {project_fingerprint(root)}
    (root / "pkg" / "up").symlink_to("..")
    seen.add(project_fingerprint(root))
    (root / "pkg" / "deep" / "up").symlink_to("..")
    seen.add(project_fingerprint(root))
    (root / "gone").symlink_to(tmp_path / "nothing")
    seen.add(project_fingerprint(root))
    (root / "self").symlink_to("self")
    seen.add(project_fingerprint(root))
    assert len(seen) == 5
    shutil.copytree(root, tmp_path / "copy", symlinks=True)
    assert project_fingerprint(tmp_path / "copy") in seen


def test_a_pipe_does_not_stop_it(tmp_path: Path) -> None:
    root = write(tmp_path, TREE)
    before = project_fingerprint(root)
    os.mkfifo(root / "pipe")
    assert project_fingerprint(root) != before
    with pytest.raises(UsageError, match="neither"):
        project_fingerprint(root / "pipe")


def test_several_paths_count_in_their_order(tmp_path: Path) -> None:
    one = write(tmp_path / "one", {"a.h": "1"})
    two = write(tmp_path / "two", {"a.h": "2"})
    assert project_fingerprint([one, two]) != project_fingerprint([two, one])
    assert project_fingerprint([one / "a.h"]) != project_fingerprint([one])
    assert project_fingerprint([one / "a.h"]) == project_fingerprint(write(tmp_path / "x", {"a.h": "1"}) / "a.h")
    assert project_fingerprint(iter([one])) == project_fingerprint(one)


@pytest.mark.parametrize("paths", [[], "nothing here", {"a"}])
def test_what_cannot_be_meant_is_refused(paths: list[str]) -> None:
    with pytest.raises(UsageError):
        project_fingerprint(paths)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    root = write(tmp_path, TREE)
    (root / "pkg" / "b.py").unlink()
    if os.path.exists("/proc/self/mem"):
        (root / "pkg" / "b.py").symlink_to("/proc/self/mem")  # even root cannot read its first byte
    else:
        (root / "pkg" / "b.py").touch(0)
    with pytest.raises(UncacheableError, match="cannot be read") as caught:
        project_fingerprint(root)
    assert caught.value.field == "pkg/b.py"


names = st.text("abc.", min_size=1, max_size=3).filter(lambda name: name.strip("."))
trees = st.dictionaries(names, st.text("xy", max_size=2), min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(trees, trees)
def test_two_trees_agree_exactly_when_their_files_do(
    tmp_path_factory: pytest.TempPathFactory, one: dict[str, str], other: dict[str, str]
) -> None:
    places = [write(tmp_path_factory.mktemp("tree"), files) for files in (one, other)]
    visible = [{name: text for name, text in files.items() if not name.endswith((".a",))} for files in (one, other)]
    assert (project_fingerprint(places[0]) == project_fingerprint(places[1])) == (visible[0] == visible[1])
