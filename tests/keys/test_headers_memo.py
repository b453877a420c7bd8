"""Remembered closures: nothing is read that is known, nothing is believed that could have changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotstart.keys import headers, memo
from hotstart.keys.headers import lexer, manifest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.keys.including import SEARCH, closure_of, lay, settle, value
else:
    from including import SEARCH, closure_of, lay, settle, value

pytestmark = pytest.mark.usefixtures("place")


def unexpected(*_: object) -> Any:
    raise AssertionError("a file was read that is known")


def toolkit_include(header: str, package: str) -> Path:
    for entry in sys.path:
        include = Path(entry) / "nvidia/cu13/include"
        if (include / header).is_file():
            return include
    pytest.skip(f"needs {header}: pip install {package}")


def test_a_closure_of_hundreds_of_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cutlass = next(
        (Path(p) / "cutlass_library/source/include" for p in sys.path if (Path(p) / "cutlass_library").is_dir()), None
    )
    if cutlass is None:
        pytest.skip("needs CUTLASS: pip install nvidia-cutlass")
    include = toolkit_include("cccl/cuda/std/cstdint", "nvidia-cuda-cccl")
    flags = (f"-I{cutlass}", f"-I{include}", f"-I{include}/cccl")
    memo_dir = str(place / "memo")
    found = closure_of("#include <cutlass/gemm/device/gemm.h>", flags, memo_dir=memo_dir)
    assert len(found.names) > 200
    headers.forget()
    monkeypatch.setattr(lexer, "readings", unexpected)
    assert closure_of("#include <cutlass/gemm/device/gemm.h>", flags, memo_dir=memo_dir) == found


def test_a_known_closure_reads_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    lay(place, {"i1/a.h": '#include "b.h"\n', "i1/b.h": value("b")})
    before = closure_of("#include <a.h>", SEARCH)
    with monkeypatch.context() as context:
        context.setattr(lexer, "readings", unexpected)
        assert closure_of("#include <a.h>", SEARCH) == before
    lay(place, {"i1/b.h": value("b2")})
    assert closure_of("#include <a.h>", SEARCH) != before


def test_another_process_reads_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    lay(place, {"i1/a.h": '#include "b.h"\n' + value("a"), "i1/b.h": value("b")})
    memo_dir = str(place / "memo")
    before = closure_of("#include <a.h>", SEARCH, memo_dir=memo_dir)
    program = (
        "import sys\nfrom hotstart.keys import headers\n"
        "found = headers.closure('#include <a.h>', name='k.cu', include_dirs=['../i1', '../i2'],"
        f" memo_dir={memo_dir!r})\n"
        "assert 'hotstart.keys.headers.search' not in sys.modules and 're' not in sys.modules, 'it searched'\n"
        "print(found.digest, *found.names)"
    )
    shown = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n" + program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.stdout.split() == [before.digest, "a.h", "b.h"], shown.stderr


def test_a_changed_tree_is_not_taken_from_the_memo(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    memo_dir = str(place / "memo")
    lay(place, {"i2/a.h": value("late")})
    before = closure_of("#include <a.h>", SEARCH, memo_dir=memo_dir)
    lay(place, {"i1/a.h": value("early")})
    headers.forget()
    assert closure_of("#include <a.h>", SEARCH, memo_dir=memo_dir) != before


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "shared", "link"])
def test_a_damaged_memo_is_not_believed(place: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    settle(monkeypatch)
    memo_dir = place / "memo"
    lay(place, {"i1/a.h": value("a")})
    before = closure_of("#include <a.h>", SEARCH, memo_dir=str(memo_dir))
    (written,) = [path for path in memo_dir.rglob("*") if path.is_file()]
    assert written.stat().st_mode & 0o777 == 0o600 and written.parent.stat().st_mode & 0o777 == 0o700
    data = written.read_bytes()
    if damage == "cut":
        written.write_bytes(data[:-3])
    elif damage == "flip":
        written.write_bytes(data.replace(before.digest[:8].encode(), b"00000000"))
    elif damage == "empty":
        written.write_bytes(b"")
    elif damage == "shared":
        written.chmod(0o666)
    else:
        written.rename(place / "aside")
        written.symlink_to(place / "aside")
    headers.forget()
    read: list[str] = []
    readings = lexer.readings
    monkeypatch.setattr(lexer, "readings", lambda data: read.append("again") or readings(data))  # type: ignore[func-returns-value]
    assert closure_of("#include <a.h>", SEARCH, memo_dir=str(memo_dir)) == before
    assert read, "the damaged memo was believed"


def test_a_memo_copied_over_another_is_nobodys(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    memo_dir = place / "memo"
    lay(place, {"i1/a.h": value("a"), "i1/b.h": value("a")})
    closure_of("#include <a.h>", SEARCH, memo_dir=str(memo_dir))
    (of_a,) = [path for path in memo_dir.rglob("*") if path.is_file()]
    closure_of("#include <b.h>", SEARCH, memo_dir=str(memo_dir))
    (of_b,) = [path for path in memo_dir.rglob("*") if path.is_file() and path != of_a]
    of_b.write_bytes(of_a.read_bytes())
    headers.forget()
    before = closure_of("#include <b.h>", SEARCH, memo_dir=str(memo_dir))
    assert before.names == ("b.h",)
    of_b.write_bytes(of_a.read_bytes())
    lay(place, {"i1/b.h": value("b")})
    headers.forget()
    assert closure_of("#include <b.h>", SEARCH, memo_dir=str(memo_dir)) != before


@pytest.mark.parametrize(
    "payload", ["", "9", "{v}", "{v} {l} d", "{v} {l} d 5 a", "{v} {l} d -5 a 0 0 0", "{v} {l} d 0 9 a"]
)
def test_a_memo_of_another_shape_is_none(place: Path, monkeypatch: pytest.MonkeyPatch, payload: str) -> None:
    settle(monkeypatch)
    memo_dir = place / "memo"
    lay(place, {"i1/a.h": value("a")})
    before = closure_of("#include <a.h>", SEARCH, memo_dir=str(memo_dir))
    (written,) = [path for path in memo_dir.rglob("*") if path.is_file()]
    label = written.parent.name + written.name
    memo.write(str(written), payload.format(v=manifest.VERSION, l=label).replace(" ", "\0").encode())
    headers.forget()
    damaged = memo.COUNTERS["damaged"]
    assert closure_of("#include <a.h>", SEARCH, memo_dir=str(memo_dir)) == before
    assert memo.COUNTERS["damaged"] == damaged + 1


def test_nothing_is_written_where_nothing_may_be(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    lay(place, {"i1/a.h": value("a")})
    monkeypatch.setenv("HOTSTART_READ_ONLY", "1")
    closure_of("#include <a.h>", SEARCH, memo_dir=str(place / "memo"))
    assert not (place / "memo").exists()
    monkeypatch.delenv("HOTSTART_READ_ONLY")
    (place / "file").write_text("")
    headers.forget()
    closure_of("#include <a.h>", SEARCH, memo_dir=str(place / "file"))


def test_memos_are_bounded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    settle(monkeypatch)
    monkeypatch.setattr(manifest, "_MOST", 4)
    lay(place, {"i1/a.h": value("a")})
    for number in range(200):
        closure_of(f"#include <a.h>\n// {number}", SEARCH, memo_dir=str(place / "memo"))
    assert len([path for path in (place / "memo").rglob("*") if path.is_file()]) <= 16 * 4


def test_a_file_changed_twice_within_one_tick_of_the_clock(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = memo.identity

    def coarse(status: os.stat_result) -> tuple[int, int, int, int]:
        """A file system whose clock ticks once an hour."""
        inode, size, modified, changed = exact(status)
        return inode, size, modified // 10**13, changed // 10**13

    monkeypatch.setattr(memo, "identity", coarse)
    monkeypatch.setattr(memo, "settled", lambda known: False)
    memo_dir = str(place / "memo")
    lay(place, {"i1/a.h": value("a")})
    before = closure_of("#include <a.h>", SEARCH, memo_dir=memo_dir)
    lay(place, {"i1/a.h": value("b")})
    assert not before.unchanged()
    assert closure_of("#include <a.h>", SEARCH, memo_dir=memo_dir) != before


def test_a_young_file_is_read_again_until_it_has_settled(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(place, {"i1/a.h": value("a")})
    memo_dir = place / "memo"
    before = closure_of("#include <a.h>", SEARCH, memo_dir=str(memo_dir))
    assert not memo_dir.exists(), "what is not settled must not be remembered for others"
    read: list[str] = []

    original = manifest.read
    monkeypatch.setattr(manifest, "read", lambda path: read.append(path) or original(path))  # type: ignore[func-returns-value]
    assert before.unchanged() and before.unchanged()
    assert len(read) == 2
    settle(monkeypatch)
    assert before.unchanged() and before.unchanged() and before.unchanged()
    assert len(read) == 3
