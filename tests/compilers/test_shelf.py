"""A shelf serves only whole files that belong together.

It stays within its bounds, and pulls no file away from under a reader.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotstart.compilers import shelf

DIGEST = "ab" * 32
FILES = {"k.json": b"{}", "k.cubin": bytes(range(256)) * 40, "k.ptx": b""}
TITLE = b"group KEY k.json"
LONG_AGO = time.time_ns() - 2 * shelf.GRACE_NS


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    """What a process remembers of slips it has read is a path of its own, tried where a test says so."""
    shelf._known.clear()
    yield
    shelf._known.clear()


def folder_of(tmp_path: Path, name: str = "KEY", digest: str = DIGEST) -> Path:
    folder = tmp_path / name
    shelf.fill(str(folder), "k.json", TITLE, digest, 1.5, FILES)
    return folder


def contents(folder: Path) -> dict[str, bytes] | None:
    found = shelf.look(str(folder), "k.json", TITLE)
    return {name: Path(path).read_bytes() for name, path in found[1].items()} if found is not None else None


def age(folder: Path, nanosecond: int = LONG_AGO) -> None:
    for path in [*folder.iterdir(), folder]:
        os.utime(path, ns=(nanosecond, nanosecond))


def test_what_was_filled_is_found_in_order_with_its_entry(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    found = shelf.look(str(folder), "k.json", TITLE)
    assert found is not None
    slip, paths = found
    assert (slip.digest, slip.cost, list(paths)) == (DIGEST, 1.5, list(FILES))
    assert contents(folder) == FILES


@pytest.mark.parametrize("name", [*FILES, ".hotstart.k.json"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_at(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    if FILES.get(name) == b"":
        assert shelf.look(str(folder), "k.json", TITLE) is not None  # it reads as the nothing that should be there
    else:
        with pytest.raises(shelf.DamagedError):
            shelf.look(str(folder), "k.json", TITLE)


def test_what_is_written_is_private(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_nothing_filed_is_none(tmp_path: Path) -> None:
    assert shelf.look(str(tmp_path / "KEY"), "k.json", TITLE) is None


def test_a_moved_shelf_serves_as_before(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "here")
    os.rename(tmp_path / "here", tmp_path / "there")
    assert contents(tmp_path / "there" / folder.name) == FILES


@pytest.mark.parametrize("remembered", [False, True], ids=["first look", "looked at before"])
@pytest.mark.parametrize("name", list(FILES))
def test_no_damage_to_a_file_passes(tmp_path: Path, name: str, remembered: bool) -> None:
    folder = folder_of(tmp_path)
    sound = FILES[name]
    flipped = bytes([sound[0] ^ 1]) + sound[1:] if sound else b"\0"
    for damaged in {sound[:-1], sound + b"\0", flipped, b"\0" * len(sound), sound[: len(sound) // 2]} - {sound}:
        if remembered:
            (folder / name).write_bytes(sound)
            assert contents(folder) == FILES
        before = (folder / name).stat()
        (folder / name).write_bytes(damaged)
        os.utime(folder / name, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(shelf.DamagedError):
            contents(folder)
        shelf._known.clear()
    (folder / name).unlink()
    with pytest.raises(shelf.DamagedError):
        contents(folder)


def test_no_damage_to_a_slip_passes(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    slip = folder / ".hotstart.k.json"
    sound = slip.read_bytes()
    damages = [sound[:length] for length in range(len(sound))]
    damages += [sound[:at] + bytes([sound[at] ^ (1 << at % 8)]) + sound[at + 1 :] for at in range(len(sound))]
    for damaged in damages:
        slip.write_bytes(damaged)
        with pytest.raises(shelf.DamagedError):
            contents(folder)
    slip.write_bytes(sound)
    assert contents(folder) == FILES


def test_a_sound_folder_under_another_key_is_not_believed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    with pytest.raises(shelf.DamagedError, match="another name"):
        shelf.look(str(folder), "k.json", b"group OTHER k.json")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (tmp_path / "elsewhere").write_bytes(FILES["k.cubin"])
    (folder / "k.cubin").unlink()
    (folder / "k.cubin").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(shelf.DamagedError):
        contents(folder)


@pytest.mark.parametrize("name", ["../k", "a/b", "", ".hotstart.k.json", "a\0b"])
def test_no_name_leaves_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(shelf.DamagedError):
        shelf.fill(str(tmp_path / "KEY"), "k.json", TITLE, DIGEST, 0.0, {name: b"x"})
    assert not (tmp_path / "KEY").exists()


def test_two_versions_of_a_kernel_are_never_mixed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    assert contents(folder) == FILES
    other = {**FILES, "k.cubin": b"other", "k.json": b"other"}
    shelf.write(str(folder), "k.cubin", other["k.cubin"])
    with pytest.raises(shelf.DamagedError):
        contents(folder)
    shelf.fill(str(folder), "k.json", TITLE, DIGEST, 1.5, other)
    assert contents(folder) == other


def test_a_sweep_withdraws_what_the_store_no_longer_has_and_removes_it_later(tmp_path: Path) -> None:
    folder, kept = folder_of(tmp_path), folder_of(tmp_path, "KEPT", "cd" * 32)
    age(folder)
    age(kept)

    def last_use(digest: str) -> int | None:
        return LONG_AGO if digest == "cd" * 32 else None

    assert shelf.sweep(str(tmp_path), 1 << 30, last_use, whole=True) == 1
    assert shelf.look(str(folder), "k.json", TITLE) is None
    assert {name for name in FILES if (folder / name).exists()} == set(FILES), "a reader may have yet to read them"
    age(folder)
    assert shelf.sweep(str(tmp_path), 1 << 30, last_use, whole=True) == 0
    assert not folder.exists()
    assert contents(kept) == FILES


def test_a_sweep_leaves_the_least_recently_used_behind_last(tmp_path: Path) -> None:
    digests = {f"K{n}": f"{n:02x}" * 32 for n in range(6)}
    folders = {name: folder_of(tmp_path, name, digest) for name, digest in digests.items()}
    for folder in folders.values():
        age(folder)
    used = {digest: LONG_AGO + n for n, digest in enumerate(digests.values())}
    size = sum(map(len, FILES.values()))
    assert shelf.sweep(str(tmp_path), 2 * size, used.get, whole=True) == 4
    assert [name for name, folder in folders.items() if contents(folder)] == ["K4", "K5"]


def test_what_was_used_a_moment_ago_is_not_swept(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    age(folder)
    assert shelf.sweep(str(tmp_path), 0, lambda _: time.time_ns(), whole=True) == 0
    assert contents(folder) == FILES


def test_a_set_that_came_back_survives_the_removal_of_its_old_slip(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    age(folder)
    assert shelf.sweep(str(tmp_path), 1 << 30, lambda _: None, whole=True) == 1
    folder_of(tmp_path)
    age(folder)
    shelf.sweep(str(tmp_path), 1 << 30, lambda _: time.time_ns(), whole=True)
    assert contents(folder) == FILES


@pytest.mark.parametrize("whole", [True, False], ids=["our shelf", "a directory of others"])
def test_only_our_own_shelf_is_cleared_of_what_has_no_slip(tmp_path: Path, whole: bool) -> None:
    theirs = tmp_path / "THEIRS"
    theirs.mkdir()
    (theirs / "k.cubin").write_bytes(b"compiled by somebody else")
    (theirs / ".hotstart-tmp.1").write_bytes(b"left by a writer that was killed")
    age(theirs)
    shelf.sweep(str(tmp_path), 0, lambda _: None, whole=whole)
    assert (theirs / "k.cubin").exists() is not whole
    assert not (theirs / ".hotstart-tmp.1").exists()


def test_of_several_processes_one_sweeps(tmp_path: Path) -> None:
    assert shelf.is_due(str(tmp_path))
    assert not shelf.is_due(str(tmp_path))
    os.utime(tmp_path / ".hotstart-swept", ns=(LONG_AGO, LONG_AGO))
    assert shelf.is_due(str(tmp_path))
    shutil.rmtree(tmp_path)
