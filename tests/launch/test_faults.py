"""Protects the program from us: whatever goes wrong with the store or the disk, it runs, ends as it would have, and
the next run finds nothing half done."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.launch.launching import HOTSTART, Place
else:
    from launching import HOTSTART, Place

UNITS = (
    'for n in 1 2 3 4 5 6 7 8; do mkdir -p "$TRITON_CACHE_DIR/K$n"; cd "$TRITON_CACHE_DIR/K$n";'
    "for f in a b c; do head -c 200000 /dev/urandom > $f.cubin; done; done"
)


def test_killed_while_restoring_the_next_run_restores(place: Place) -> None:
    place.sh(UNITS)
    before = place.files()
    chance = random.Random(4)
    for _ in range(8):
        place.wipe()
        process = subprocess.Popen([*HOTSTART, "run", "true"], env=place.environ)
        time.sleep(chance.uniform(0.02, 0.25))
        process.kill()
        process.wait()
        # Whatever is there is whole: files come by rename.
        for path, data in place.files().items():
            assert data == before[path]
        place.sh("true")
        assert place.files() == before
        assert not list((place.home / "launch" / "staging").iterdir())


def test_killed_while_capturing_the_next_run_captures(place: Place) -> None:
    chance = random.Random(5)
    for number in range(6):
        script = UNITS.replace("K$n", f"N{number}-$n") + f"; touch {place.path}/written"
        process = subprocess.Popen([*HOTSTART, "run", "sh", "-c", script], env=place.environ)
        while not (place.path / "written").exists():
            time.sleep(0.005)
        (place.path / "written").unlink()
        time.sleep(chance.uniform(0.0, 0.2))
        process.kill()
        process.wait()
    place.sh("true")
    before = place.files()
    assert len(before) == 6 * 24
    place.wipe()
    place.sh("true")
    assert place.files() == before


def limited(place: Place, blocks: int, script: str) -> subprocess.CompletedProcess[str]:
    """No file may grow beyond so many blocks of 512 bytes: what a full disk does, for one process."""
    command = ["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh", *HOTSTART, "run", "sh", "-c", script]
    return subprocess.run(command, env=place.environ, cwd=place.work, capture_output=True, text=True, check=False)


def test_what_cannot_be_written_is_not_restored_and_not_in_the_way(place: Place) -> None:
    place.sh(UNITS + '; mkdir "$TRITON_CACHE_DIR/SMALL"; echo small > "$TRITON_CACHE_DIR/SMALL/a.cubin"')
    place.wipe()
    done = limited(place, 200, "echo ran; exit 3")
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert {path: len(data) for path, data in place.files().items()} == {"triton/SMALL/a.cubin": 6}


def test_what_cannot_be_stored_stays_where_it_is_and_is_taken_in_later(place: Place) -> None:
    place.sh("true")
    done = limited(place, 900, UNITS + "; echo ran; exit 3")
    assert (done.returncode, done.stdout) == (3, "ran\n")
    before = place.files()
    assert len(before) == 24
    place.sh('mkdir "$TRITON_CACHE_DIR/MORE"; echo more > "$TRITON_CACHE_DIR/MORE/a.cubin"')
    before = place.files()
    place.wipe()
    place.sh("true")
    assert place.files() == before


@pytest.mark.parametrize("what", ["store", "launch", "store/entries", "launch/live", "launch/lock"])
def test_something_else_where_ours_should_be(what: str, place: Place) -> None:
    place.sh("true")
    path = place.home / what
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("a file")
    else:
        path.unlink()
        path.mkdir()
    done = place.run("sh", "-c", 'mkdir -p "$TRITON_CACHE_DIR/A"; echo x > "$TRITON_CACHE_DIR/A/k"; exit 3')
    assert done.returncode == 3
    assert done.stderr.count("\n") <= 1
    assert "Traceback" not in done.stderr


def test_a_removed_home_is_made_again(place: Place) -> None:
    done = place.run("sh", "-c", f"rm -rf {place.home}; exit 4")
    assert (done.returncode, "Traceback" in done.stderr) == (4, False)
    place.sh(UNITS)
    assert len(place.files()) == 24


def test_a_second_ctrl_c_ends_a_long_capture(place: Place) -> None:
    """The command is done; whoever presses Ctrl-C now wants the prompt back."""
    import signal

    script = UNITS.replace("1 2 3 4 5 6 7 8", "$(seq 300)") + f"; touch {place.path}/written"
    process = subprocess.Popen([*HOTSTART, "run", "sh", "-c", script], env=place.environ, start_new_session=True)
    while not (place.path / "written").exists():
        time.sleep(0.005)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    began = time.monotonic()
    assert process.wait(timeout=60) == 0
    waited = time.monotonic() - began
    assert len(list((place.root / "triton").iterdir())) == 300
    entries = [path for path in (place.home / "store" / "entries").rglob("*") if path.is_file()]
    assert len(entries) < 300, f"all was captured in the {waited:.1f} s after Ctrl-C"
    place.sh("true")
    entries = [path for path in (place.home / "store" / "entries").rglob("*") if path.is_file()]
    assert len(entries) == 300


def test_grace_bounds_the_capture_after_sigterm(place: Place) -> None:
    script = UNITS.replace("1 2 3 4 5 6 7 8", "$(seq 200)") + "; kill -TERM $$"
    done = place.run("--grace", "0.2", "sh", "-c", script)
    assert done.returncode == -15
    entries = [path for path in (place.home / "store" / "entries").rglob("*") if path.is_file()]
    assert len(entries) < 200
    assert "no time" in " ".join(place.record()["troubles"])


def test_without_sqlite_databases_are_left_and_all_else_is_kept(place: Place) -> None:
    block = place.path / "block"
    block.mkdir()
    (block / "sqlite3.py").write_text("raise ImportError('not here')\n")
    done = place.run(
        *("sh", "-c", UNITS + f'; mkdir -p "{place.root}/tinygrad"; echo not a database > "$CACHEDB"'),
        env={"PYTHONPATH": str(block)},
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    before = {path: data for path, data in place.files().items() if path.startswith("triton")}
    place.wipe()
    done = place.run("true", env={"PYTHONPATH": str(block)})
    assert place.files() == before
