"""Protects the one budget: entries and redirected directories together stay below the cap, but for the live run's
own files; what a live run uses is not taken from under it; what was taken off the disk comes back when it is wanted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from tests.launch.launching import HOTSTART, Place
else:
    from launching import HOTSTART, Place

MB = 1_000_000


def size(path: Path) -> int:
    total = 0
    for place, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(f"{place}/{name}").st_size
            except FileNotFoundError:
                continue  # removed meanwhile
    return total


def held(place: Place) -> int:
    """What counts: entries, blobs and the redirected directories."""
    return sum(size(place.home / name) for name in ("store/entries", "store/blobs", "frameworks"))


def kernels(names: str, megabytes: int) -> str:
    """Units of incompressible machine code."""
    return (
        f'for name in {names}; do mkdir -p "$TRITON_CACHE_DIR/$name"; '
        f'head -c {megabytes * MB} /dev/urandom > "$TRITON_CACHE_DIR/$name/k.cubin"; done;'
    )


def numbered(count: int) -> str:
    return " ".join(f"K{number}" for number in range(count))


def test_a_program_that_compiles_ten_times_the_cap(place: Place) -> None:
    """The live run's own files are all that the cap may be exceeded by, and only while it lives."""
    cap = 50 * MB
    place.environ["HOTSTART_MAX_SIZE"] = str(cap)
    place.sh(kernels("OLD1 OLD2 OLD3 OLD4", 5))
    process = subprocess.Popen([*HOTSTART, "run", "sh", "-c", kernels(numbered(100), 5)], env=place.environ)
    most = 0
    while process.poll() is None:
        # Own first: what appears between the two looks is then counted against us.
        own = sum(size(unit) for unit in (place.root / "triton").glob("K*"))
        most = max(most, held(place) - own - 5 * MB)  # but for the one unit that is being written
        time.sleep(0.05)
    assert process.returncode == 0
    assert most <= cap
    assert held(place) <= cap
    done = place.run("sh", "-c", "echo started; " + kernels("LAST", 1))
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")
    assert held(place) <= cap
    assert (place.root / "triton/LAST/k.cubin").stat().st_size == MB


def test_the_same_of_linked_units(place: Place) -> None:
    cap = 20 * MB
    place.environ["HOTSTART_MAX_SIZE"] = str(cap)
    script = (
        'mkdir -p "$TORCHINDUCTOR_CACHE_DIR/aa"; cd "$TORCHINDUCTOR_CACHE_DIR/aa";'
        f"for n in $(seq 30); do head -c {2 * MB} /dev/urandom > c$n.so; done"
    )
    done = place.run("sh", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    assert held(place) <= cap
    assert place.run("true").returncode == 0


def test_each_workload_finds_what_it_used_though_both_do_not_fit(place: Place) -> None:
    """Compressible, so that the store has room for all and the directories have not."""
    place.environ["HOTSTART_MAX_SIZE"] = str(20 * MB)
    script = (
        'for n in 1 2 3; do mkdir -p "$TRITON_CACHE_DIR/{name}$n"; yes {name} | head -c 4000000'
        ' > "$TRITON_CACHE_DIR/{name}$n/k.cubin"; done'
    )
    for name in ("first", "second"):
        done = place.run("--name", name, "sh", "-c", script.format(name=name))
        assert (done.returncode, done.stderr) == (0, "")
        assert held(place) <= 20 * MB
    there = {path.name for path in (place.root / "triton").iterdir()}
    assert there >= {"second1", "second2", "second3"}
    assert not there >= {"first1", "first2", "first3"}
    count = 'ls "$TRITON_CACHE_DIR"'
    for name in ("first", "second", "first"):
        done = place.run("--name", name, "sh", "-c", count)
        assert done.stderr == ""
        assert set(done.stdout.split()) >= {f"{name}1", f"{name}2", f"{name}3"}
        assert held(place) <= 20 * MB


def test_what_a_live_run_has_written_or_read_is_not_taken_from_under_it(place: Place) -> None:
    place.environ["HOTSTART_MAX_SIZE"] = str(10 * MB)
    place.sh(kernels("OLD", 2))
    read = f"{sys.executable} -c 'import time; time.sleep(0.1)'; cat $TRITON_CACHE_DIR/OLD/k.cubin >/dev/null;"
    live = subprocess.Popen(
        [*HOTSTART, "run", "sh", "-c", kernels("MINE", 2) + read + "echo ready; read line"],
        env=place.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert live.stdout is not None
    assert live.stdout.readline() == b"ready\n"
    done = place.run("sh", "-c", kernels(numbered(1), 3))
    assert (done.returncode, done.stderr) == (0, "")
    assert (place.root / "triton/MINE/k.cubin").exists()
    assert (place.root / "triton/OLD/k.cubin").exists()
    live.communicate(b"\n", timeout=60)
    assert live.returncode == 0
    assert held(place) <= 10 * MB


def test_a_killed_run_is_not_alive(place: Place) -> None:
    place.environ["HOTSTART_MAX_SIZE"] = str(10 * MB)
    live = subprocess.Popen(
        [*HOTSTART, "run", "sh", "-c", kernels("MINE", 2) + "echo $$; exec sleep 60"],
        env=place.environ,
        stdout=subprocess.PIPE,
    )
    assert live.stdout is not None
    child = int(live.stdout.readline())
    live.kill()
    live.wait()
    os.kill(child, signal.SIGKILL)
    time.sleep(1.1)  # a run that has just made its file and not locked it is taken for alive
    done = place.run("sh", "-c", kernels(numbered(4), 3))
    assert (done.returncode, done.stderr) == (0, "")
    assert held(place) <= 10 * MB
    assert not list((place.home / "launch" / "live").iterdir())


def test_clearing_removes_directories_and_notes(place: Place) -> None:
    from hotstart.launch.budget import clear

    place.sh(kernels("AAA", 1))
    clear(str(place.home), str(place.root))
    assert place.files() == {}
    place.sh("true")
    assert sorted(place.files()) == ["triton/AAA/k.cubin"]  # the store still has it


def test_a_download_larger_than_the_cap_does_not_empty_the_store(place: Place) -> None:
    """It belongs to no unit, so nobody may remove it; giving up everything else would not help."""
    place.environ["HOTSTART_MAX_SIZE"] = str(20 * MB)
    place.sh(kernels("AAA BBB", 1))
    cubins = '"$FLASHINFER_WORKSPACE_BASE/.cache/flashinfer/cubins"'
    place.sh(f"mkdir -p {cubins}; head -c {60 * MB} /dev/urandom > {cubins}/all; " + kernels("CCC", 1))
    assert len(list((place.root / "triton").iterdir())) == 3
    place.wipe()
    place.sh("true")
    assert len(list((place.root / "triton").iterdir())) == 3
