"""Protects capture and restore: what a program left in its cache directory comes back whole, checked and in its
place, or not at all; and a run in which nothing happened changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hotstart
from hotstart.launch import parcel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.launch.launching import HOTSTART, Place
else:
    from launching import HOTSTART, Place

#: A Triton kernel as Triton leaves it: files, and a list of them by absolute path.
KERNEL = """
mkdir -p "$TRITON_CACHE_DIR/{key}"
cd "$TRITON_CACHE_DIR/{key}"
printf 'machine code %s' {key} > add.cubin
printf 'text %s' {key} > add.ptx
printf '{{"child_paths": {{"add.cubin": "%s/add.cubin", "add.ptx": "%s/add.ptx"}}}}' "$PWD" "$PWD" > __grp__add.json
"""

#: What Inductor leaves of one graph: the graph, its wrapper, a library.
GRAPH = """
cd "$TORCHINDUCTOR_CACHE_DIR" 2>/dev/null || {{ mkdir -p "$TORCHINDUCTOR_CACHE_DIR"; cd "$TORCHINDUCTOR_CACHE_DIR"; }}
mkdir -p fxgraph/{key}/f{key} {key}
echo graph {key} > fxgraph/{key}/f{key}/data
echo wrapper {key} > {key}/c{key}.py
echo library {key} > {key}/c{key}b.so
chmod +x {key}/c{key}b.so
"""


def kernel(key: str) -> str:
    return KERNEL.format(key=key)


def graph(key: str) -> str:
    return GRAPH.format(key=key)


def stored(place: Place) -> hotstart.Cache:
    return hotstart.Cache(place.home / "store")


def entries(place: Place) -> list[Path]:
    return sorted(path for path in (place.home / "store" / "entries").rglob("*") if path.is_file())


def test_what_was_wiped_comes_back(place: Place) -> None:
    place.sh(kernel("AAA") + kernel("BBB"))
    before = place.files()
    assert len(before) == 6
    place.wipe()
    assert place.sh('cat "$TRITON_CACHE_DIR"/*/add.cubin').stdout == "machine code AAAmachine code BBB"
    assert place.files() == before
    record = place.record()
    assert {unit["event"] for unit in record["units"]} >= {"restored"}
    assert record["frameworks"]["triton"]["restored"] == 2


def test_one_missing_file_brings_its_unit_back_and_leaves_the_others(place: Place) -> None:
    place.sh(kernel("AAA") + kernel("BBB"))
    before = place.files()
    (place.root / "triton/AAA/add.cubin").unlink()
    other = (place.root / "triton/BBB/add.cubin").stat()
    place.sh("true")
    assert place.files() == before
    after = (place.root / "triton/BBB/add.cubin").stat()
    assert (after.st_ino, after.st_mtime_ns) == (other.st_ino, other.st_mtime_ns)


def test_a_truncated_file_is_replaced_at_the_next_start(place: Place) -> None:
    place.sh(kernel("AAA"))
    before = place.files()
    os.truncate(place.root / "triton/AAA/add.cubin", 3)
    (place.root / "triton/AAA/lock").touch()  # something in the directory changed: only that makes a start look
    place.sh("true")
    assert place.files() == before | {"triton/AAA/lock": b""}


def test_a_file_that_the_framework_wrote_meanwhile_stays(place: Place) -> None:
    place.sh(kernel("AAA"))
    shutil.rmtree(place.root / "triton/AAA")
    (place.root / "triton/AAA").mkdir()
    (place.root / "triton/AAA/add.cubin").write_text("machine code of its own, newer")
    place.sh("true")
    assert (place.root / "triton/AAA/add.cubin").read_text() == "machine code of its own, newer"
    assert (place.root / "triton/AAA/add.ptx").exists()


def test_paths_inside_files_are_those_of_where_they_lie(place: Place) -> None:
    """Also when the whole home was moved, with the files in it, and when only the store was."""
    place.sh(kernel("AAA"))
    for wiped in (False, True):
        old = place.home
        place.home = place.path / f"elsewhere {wiped}"
        shutil.move(old, place.home)
        place.environ["HOTSTART_HOME"] = str(place.home)
        if wiped:
            shutil.rmtree(place.home / "launch")
            place.wipe()
        place.sh("true")
        group = json.loads((place.root / "triton/AAA/__grp__add.json").read_text())
        assert group["child_paths"]["add.cubin"] == str(place.root / "triton/AAA/add.cubin")
    entry = next(iter(stored(place).digests("capture")))
    held = stored(place).disk
    assert held is not None
    found = held.read(entry)
    assert found is not None
    assert str(place.path).encode() not in found["files"]


def test_the_inventory_and_the_state_may_be_lost(place: Place) -> None:
    place.sh(kernel("AAA"))
    before = place.files()
    for lost in (["inventory"], ["state"], ["inventory", "state"]):
        for name in lost:
            (place.home / "launch" / name).unlink()
        place.wipe()
        place.sh("true")
        assert place.files() == before
    for name, damage in (("inventory", "{"), ("state", "hotstart launch 1\nx"), ("inventory", '{"version": 1}')):
        (place.home / "launch" / name).write_text(damage)
        place.wipe()
        place.sh("true")
        assert place.files() == before


def test_a_unit_that_grows_is_taken_in_again(place: Place) -> None:
    place.sh(kernel("AAA"))
    place.sh('printf more > "$TRITON_CACHE_DIR/AAA/add.sass"')
    before = place.files()
    place.wipe()
    place.sh("true")
    assert place.files() == before
    assert "triton/AAA/add.sass" in before


def test_what_is_replaced_under_its_name_comes_back_in_its_latest_form(place: Place) -> None:
    for content in ("first", "second"):
        place.sh(f'mkdir -p "$TRITON_CACHE_DIR/T"; printf {content} > "$TRITON_CACHE_DIR/T/f.autotune.json"')
    place.wipe()
    place.sh("true")
    assert place.files() == {"triton/T/f.autotune.json": b"second"}


def test_locks_and_temporary_files_are_not_taken_in(place: Place) -> None:
    place.sh(kernel("AAA") + 'touch "$TRITON_CACHE_DIR/AAA/lock" "$TRITON_CACHE_DIR/AAA/tmp.pid_1_x"')
    place.wipe()
    place.sh("true")
    assert sorted(place.files()) == [f"triton/AAA/{name}" for name in ("__grp__add.json", "add.cubin", "add.ptx")]


def test_links_are_neither_taken_in_nor_followed(place: Place) -> None:
    secret = place.path / "secret"
    secret.write_text("private")
    place.sh(
        kernel("AAA") + f'ln -s {secret} "$TRITON_CACHE_DIR/AAA/link"; ln -s {place.path} "$TRITON_CACHE_DIR/away"'
    )
    place.wipe()
    place.sh("true")
    assert all("link" not in path and "away" not in path for path in place.files())
    # And nothing is written through a link that lies where a directory was.
    place.wipe()
    outside = place.path / "outside"
    outside.mkdir()
    place.root.mkdir()
    (place.root / "triton").symlink_to(outside)
    place.sh("true")
    assert list(outside.iterdir()) == []


# -- groups --------------------------------------------------------------------


def test_linked_units_come_back_together(place: Place) -> None:
    place.sh(graph("aa") + graph("bb"))
    before = place.files()
    assert len(entries(place)) == 1
    place.wipe()
    place.sh("true")
    assert place.files() == before
    assert (place.root / "torch/inductor/aa/caab.so").stat().st_mode & 0o777 == 0o700
    assert (place.root / "torch/inductor/aa/caa.py").stat().st_mode & 0o777 == 0o600


def test_a_damaged_entry_restores_nothing_of_its_group(place: Place) -> None:
    place.sh(graph("aa") + kernel("AAA"))
    place.wipe()
    for path in entries(place):
        data = bytearray(path.read_bytes())
        if b"fxgraph" in data:
            data[-3] ^= 1
            path.write_bytes(data)
    done = place.run("true")
    assert done.returncode == 0
    assert sorted({path.split("/")[0] for path in place.files()}) == ["triton"]
    assert "torch" in " ".join(place.record()["troubles"])


def test_a_group_is_not_restored_without_what_it_needs(place: Place) -> None:
    """The second graph was compiled while the library of the first was read: alone it would be half a hit."""
    place.sh(graph("aa"))
    first = entries(place)
    # The processor time makes it look like a program that imports something.
    read = f"{sys.executable} -c 'sum(range(40_000_000))'; cat $TORCHINDUCTOR_CACHE_DIR/aa/caab.so >/dev/null;"
    place.sh(read + graph("bb"))
    before = place.files()
    place.wipe()
    place.sh("true")
    assert place.files() == before
    place.wipe()
    for path in first:
        path.unlink()
    place.run("true")
    assert place.files() == {}


def test_a_large_group_is_several_entries_and_still_all_or_nothing(place: Place) -> None:
    big = 'head -c 9000000 /dev/urandom > "$TORCHINDUCTOR_CACHE_DIR/aa/c{n}.so";'
    place.sh(graph("aa") + "".join(big.format(n=n) for n in range(4)))
    assert len(entries(place)) > 1
    before = place.files()
    place.wipe()
    place.sh("true")
    assert place.files() == before
    place.wipe()
    entries(place)[0].unlink()
    place.run("true")
    assert place.files() == {}


# -- frameworks with ways of their own -------------------------------------------


def test_times_are_kept_where_they_are_part_of_the_key(place: Place) -> None:
    build = 'mkdir -p "$TORCH_EXTENSIONS_DIR/ext"; cd "$TORCH_EXTENSIONS_DIR/ext"; touch -d @1000000.123456789 '
    place.sh(build + "main.o; touch -d @1000001.5 .ninja_log; touch lock")
    times = {path.name: path.stat().st_mtime_ns for path in (place.root / "torch-extensions/ext").iterdir()}
    place.wipe()
    place.sh("true")
    found = {path.name: path.stat().st_mtime_ns for path in (place.root / "torch-extensions/ext").iterdir()}
    assert found == {name: when for name, when in times.items() if name != "lock"}


def test_what_does_not_move_is_not_restored_elsewhere(place: Place) -> None:
    place.sh('mkdir -p "$TORCH_EXTENSIONS_DIR/ext"; echo x > "$TORCH_EXTENSIONS_DIR/ext/main.o"')
    old = place.home
    place.home = place.path / "elsewhere"
    place.environ["HOTSTART_HOME"] = str(place.home)
    shutil.move(old, place.home)
    place.wipe()
    place.sh("true")
    assert place.files() == {}


def test_a_database_is_copied_by_sqlite_while_it_is_open(place: Place) -> None:
    program = (
        "import os, sqlite3\n"
        "path = os.environ['CACHEDB']\n"
        "os.makedirs(os.path.dirname(path), exist_ok=True)\n"
        "base = sqlite3.connect(path)\n"
        "base.execute('pragma journal_mode=wal')\n"
        "base.execute('create table kernels (key text, code blob)')\n"
        "base.execute(\"insert into kernels values ('k', x'00ff')\")\n"
        "base.commit()\n"
        "os._exit(0)\n"  # killed, in a way: the log is not merged
    )
    done = place.run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert (place.root / "tinygrad/cache.db-wal").stat().st_size > 0
    place.wipe()
    place.sh("true")
    base = sqlite3.connect(place.root / "tinygrad/cache.db")
    assert base.execute("select * from kernels").fetchall() == [("k", b"\x00\xff")]
    base.close()


def test_a_torn_executable_of_jax_is_removed_and_never_stored(place: Place) -> None:
    import zlib

    whole = zlib.compress(b"executable" * 1000)
    (place.path / "whole").write_bytes(whole)
    (place.path / "torn").write_bytes(whole[:-7])
    copy = 'mkdir -p "$JAX_COMPILATION_CACHE_DIR"; cp {path}/{what} "$JAX_COMPILATION_CACHE_DIR/jit_f-1-cache"'
    place.sh(copy.format(path=place.path, what="torn"))
    assert place.files() == {}
    assert [unit["event"] for unit in place.record()["units"]] == ["damaged"]
    place.sh(copy.format(path=place.path, what="whole"))
    assert place.files() == {"jax/jit_f-1-cache": whole}
    place.wipe()
    place.sh("true")
    assert place.files() == {"jax/jit_f-1-cache": whole}


# -- what may lie in a store -------------------------------------------------------


@pytest.mark.parametrize("path", ["../../../escaped", "/escaped", "AAA/../../../escaped", "escaped"])
def test_names_from_a_store_never_leave_their_directory(path: str, place: Place) -> None:
    place.sh("true")
    about = {
        "version": parcel.VERSION,
        "framework": "triton",
        "group": "kernel/AAA",
        "part": 0,
        "parts": 1,
        "needs": [],
        "root": str(place.root),
        "packed": "",
        "files": [[path, 4, 0, 0]],
        "large": [],
        "units": [["kernel", "AAA", 1.0, [[path, 4, 0]]]],
    }
    with stored(place) as cache:
        assert cache.put(parcel.key("triton", "kernel/AAA", 0), {"files": b"evil"}, meta=about)
    (place.home / "launch" / "inventory").unlink()
    (place.home / "launch" / "state").unlink()
    place.run("true")
    assert not list(place.path.rglob("escaped"))
    assert place.files() == {}


def test_a_store_of_another_version_is_left_alone(place: Place) -> None:
    place.sh(kernel("AAA"))
    (place.home / "store" / "format").write_text("hotstart store 99\n")
    place.wipe()
    done = place.run("sh", "-c", 'ls "$TRITON_CACHE_DIR" 2>/dev/null; exit 5')
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.count("\n") == 1
    assert "newer hotstart" in done.stderr


# -- many at once ------------------------------------------------------------------


def test_a_nested_run_shares_everything(place: Place) -> None:
    (place.work / "inner").write_text(kernel("AAA"))
    place.sh(kernel("BBB") + f"cd {place.work}; {sys.executable} -m hotstart run sh ./inner")
    assert sorted({path.split("/")[1] for path in place.files()}) == ["AAA", "BBB"]
    assert place.record()["frameworks"]["triton"]["left_alone"] == []
    before = place.files()
    place.wipe()
    place.sh("true")
    assert place.files() == before


def test_runs_at_the_same_time_share_the_store(place: Place) -> None:
    running = [
        subprocess.Popen([*HOTSTART, "run", "sh", "-c", kernel(f"K{n}")], env=place.environ, stderr=subprocess.PIPE)
        for n in range(6)
    ]
    for process in running:
        assert process.communicate(timeout=120)[1] == b""
        assert process.returncode == 0
    before = place.files()
    assert len(before) == 18
    place.sh("true")  # takes in what a run left to another
    place.wipe()
    place.sh("true")
    assert place.files() == before


def test_after_a_crash_and_after_sigterm_what_was_compiled_is_kept(place: Place) -> None:
    for number, key in (("TERM", "AAA"), ("SEGV", "BBB"), ("KILL", "CCC")):
        done = place.run("sh", "-c", kernel(key) + f"ulimit -c 0; kill -{number} $$")
        assert done.returncode < 0
    before = place.files()
    place.wipe()
    place.sh("true")
    assert place.files() == before


def test_what_a_daemon_compiles_later_is_taken_in_by_the_next_run(place: Place) -> None:
    place.sh(f"({{ sleep 0.7; {kernel('AAA')}\ntouch {place.path}/done; }}) >/dev/null 2>&1 </dev/null &")
    while not (place.path / "done").exists():
        time.sleep(0.05)
    place.sh("true")
    before = place.files()
    assert len(before) == 3
    place.wipe()
    place.sh("true")
    assert place.files() == before


# -- nothing happened ----------------------------------------------------------------


def test_a_run_in_which_nothing_happened_changes_nothing(place: Place) -> None:
    place.sh(kernel("AAA"))

    def everything() -> dict[str, tuple[int, int]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_ino)
            for path in place.home.rglob("*")
            if path != place.home / "launch" / "live"
        }

    before = everything()
    place.sh("true")
    assert everything() == before


def test_read_only_restores_and_keeps_nothing(place: Place) -> None:
    place.sh(kernel("AAA"))
    held = {path: path.stat().st_mtime_ns for path in entries(place)}
    place.wipe()
    done = place.run("sh", "-c", kernel("BBB"), env={"HOTSTART_READ_ONLY": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert (place.root / "triton/AAA/add.cubin").exists()
    assert {path: path.stat().st_mtime_ns for path in entries(place)} == held


def test_layers_under_the_store_are_restored_from_in_place(place: Place) -> None:
    place.sh(kernel("AAA"))
    before = {path: data for path, data in place.files().items() if "__grp__" not in path}
    layer = place.path / "layer"
    shutil.move(place.home / "store", layer)
    shutil.rmtree(place.home)
    place.sh("true", env={"HOTSTART_UNDER": str(layer)})
    assert {path: data for path, data in place.files().items() if "__grp__" not in path} == before
    assert entries(place) == []


def test_the_configured_home_is_private(place: Place) -> None:
    place.sh(kernel("AAA"))
    for path in (place.home, *place.home.rglob("*")):
        if "frameworks/" not in str(path):  # what the program itself writes has the modes it gives
            assert path.stat().st_mode & 0o077 == 0, path
