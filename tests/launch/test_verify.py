"""Protects ``verify`` of the redirected directories: a file that is not what the store has is found and repaired."""

from __future__ import annotations

import pytest

from hotstart.launch.verify import Report, verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from tests.launch.launching import Place
else:
    from launching import Place

FILES = 'mkdir -p "$TRITON_CACHE_DIR/AAA" "$TORCHINDUCTOR_CACHE_DIR/aa"; cd "$TRITON_CACHE_DIR/AAA";' + (
    'printf "machine code" > k.cubin; printf "text" > k.ptx; cd "$TORCHINDUCTOR_CACHE_DIR/aa";'
    "printf library > caa.so; chmod +x caa.so"
)


@pytest.fixture
def filled(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    place.sh(FILES)
    monkeypatch.setenv("HOTSTART_HOME", str(place.home))
    return place


def numbers(report: Report) -> tuple[int, int, int, int]:
    return report.ok, len(report.repaired), len(report.damaged), report.unknown


def test_what_is_sound_is_left_alone(filled: Place) -> None:
    before = {path: path.stat().st_ino for path in filled.root.rglob("*")}
    assert numbers(verify()) == (3, 0, 0, 0)
    assert {path: path.stat().st_ino for path in filled.root.rglob("*")} == before


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["flipped", "truncated", "emptied", "longer"])
@pytest.mark.parametrize("which", ["triton/AAA/k.cubin", "torch/inductor/aa/caa.so"])
def test_a_damaged_file_is_repaired(how: str, which: str, filled: Place) -> None:
    before = filled.files()
    path = filled.root / which
    mode = path.stat().st_mode & 0o100
    if how == "flipped":
        flip(path)
    else:
        path.write_bytes({"truncated": before[which][:3], "emptied": b"", "longer": before[which] + b"x"}[how])
    found = verify(repair=False)
    assert (found.damaged, found.repaired) == ([which], [])
    found = verify()
    assert (found.damaged, found.repaired) == ([], [which])
    assert filled.files() == before
    assert path.stat().st_mode & 0o100 == mode
    assert numbers(verify()) == (3, 0, 0, 0)


def test_what_the_store_cannot_help_with_is_unknown_not_damaged(filled: Place) -> None:
    for path in (filled.home / "store" / "entries").rglob("*"):
        if path.is_file():
            path.unlink()
    assert numbers(verify()) == (0, 0, 0, 3)


def test_what_frameworks_replace_is_not_compared(filled: Place) -> None:
    filled.sh('printf one > "$TRITON_CACHE_DIR/AAA/f.autotune.json"')
    (filled.root / "triton/AAA/f.autotune.json").write_text("two")
    assert numbers(verify()) == (3, 0, 0, 1)
    assert (filled.root / "triton/AAA/f.autotune.json").read_text() == "two"
