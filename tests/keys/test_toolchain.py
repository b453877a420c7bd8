"""A compiler's identity: exact to the byte, the same everywhere, and never that of another compiler.

The compilers are the installed ones. Where another patch release is needed, a copy of
NVRTC with some bytes changed stands for it: it is loaded and identified like any other.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotstart.errors import UncacheableError
from hotstart.keys import memo, toolchain
from hotstart.keys.digest import encode
from hotstart.keys.toolchain import identity, libraries
from hotstart.keys.toolchain.identity import Toolchain

pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc: the test extra")


@pytest.fixture(autouse=True)
def fresh() -> None:
    toolchain.forget()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A memo that knows the installed compilers, so that each test need not read them."""
    directory = str(tmp_path_factory.mktemp("memo"))
    toolchain.forget()
    toolchain.nvrtc(directory)
    return directory


@pytest.fixture
def copy(tmp_path: Path, kept: str) -> Path:
    """NVRTC and its built-in library in another directory."""
    directory = tmp_path / "copy"
    directory.mkdir()
    for path, _ in toolchain.nvrtc(kept).watched:
        shutil.copy(path, directory)
    toolchain.forget()
    return directory / Path(libraries.NVRTC.sonames[0])


def unexpected(*_: object) -> Any:
    raise AssertionError("a compiler was read that is known")


def in_child(program: str, *arguments: str, **environment: str) -> Any:
    """What a new process prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nvrtc_is_known_to_its_patch_release(kept: str) -> None:
    found = toolchain.nvrtc(kept)
    assert found.name == "nvrtc"
    assert len(found.version.split(".")) == 3
    # The compiler and the library of its built-in functions, whole.
    assert [len(digest) for digest in found.digests] == [64, 64]
    assert [Path(path).name.split(".so")[0] for path, _ in found.watched] == ["libnvrtc", "libnvrtc-builtins"]


def test_no_path_is_part_of_an_identity(kept: str) -> None:
    found = toolchain.nvrtc(kept)
    encoded = encode(found)
    assert b"/" not in encoded.replace(b"hotstart.Toolchain", b"")
    assert str(Path.home()).encode() not in encoded
    assert encode(found) == encode(Toolchain(found.name, found.version, found.digests))


def test_what_is_predicted_is_what_is_loaded(kept: str) -> None:
    program = """
import json, sys
from hotstart.keys.toolchain import libraries
from hotstart.keys import toolchain
known = (libraries.NVRTC, libraries.NVJITLINK, libraries.NVVM)
predicted = {library.name: libraries.find(library) for library in known}
assert "cuda" not in sys.modules and "ctypes" not in sys.modules
found = toolchain.nvrtc(sys.argv[1])
early = found.confirm()
found = toolchain.nvrtc(sys.argv[1])
from cuda.bindings import nvrtc
from cuda.pathfinder import load_nvidia_dynamic_lib
assert int(nvrtc.nvrtcVersion()[0]) == 0
loaded = {name: load_nvidia_dynamic_lib(name).abs_path for name, path in predicted.items() if path}
_, handle = nvrtc.nvrtcCreateProgram(b"int x;", b"k.cu", 0, None, None)
nvrtc.nvrtcCompileProgram(handle, 1, [b"-default-device"])
print(json.dumps([predicted, loaded, early, found.confirm(), found.confirm(loaded["nvrtc"])]))
"""
    predicted, loaded, early, confirmed, by_path = in_child(program, kept)
    assert {name: path for name, path in predicted.items() if path} == loaded
    assert not early, "nothing was loaded yet: that is no confirmation"
    assert confirmed and by_path


def test_another_patch_release_is_another_compiler(copy: Path, kept: str) -> None:
    installed = toolchain.nvrtc(kept)
    data = copy.read_bytes()
    assert data.count(installed.version.encode())
    last = str((int(installed.version[-1]) + 1) % 10)
    copy.write_bytes(data.replace(f"V{installed.version}".encode(), f"V{installed.version[:-1]}{last}".encode()))
    assert not installed.confirm(str(copy))
    other = toolchain.nvrtc(kept)
    assert other.version == installed.version[:-1] + last
    assert other != installed and encode(other) != encode(installed)


def test_one_byte_is_enough(copy: Path, kept: str) -> None:
    installed = toolchain.nvrtc(kept)
    for changed in (copy, *[path for path in copy.parent.iterdir() if "builtins" in path.name]):
        with changed.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        identity.LOADED["nvrtc"] = str(copy)
        identity.COMPUTED.clear()
        other = toolchain.nvrtc("")
        assert other.version == installed.version
        assert other != installed
        installed = other


def test_the_same_release_elsewhere_is_the_same_compiler(copy: Path, kept: str) -> None:
    installed = toolchain.nvrtc(kept)
    identity.COMPUTED.clear()
    identity.LOADED["nvrtc"] = str(copy)
    assert toolchain.nvrtc("") == installed


def test_a_library_that_was_loaded_first_is_the_one_identified(copy: Path, kept: str) -> None:
    program = """
import ctypes, json, os, sys
ctypes.CDLL(sys.argv[2])
from hotstart.keys.toolchain import libraries
from hotstart.keys import toolchain
from cuda.bindings import nvrtc
assert int(nvrtc.nvrtcVersion()[0]) == 0
found = toolchain.nvrtc("")
print(json.dumps([found.watched[0][0], found.confirm(), found.digests]))
"""
    with copy.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    path, confirmed, digests = in_child(program, kept, str(copy))
    assert path == str(copy)
    assert confirmed
    assert tuple(digests) != toolchain.nvrtc(kept).digests


def test_a_wrong_prediction_is_never_confirmed(copy: Path, kept: str) -> None:
    """Somebody loads another NVRTC after the key was made: the result must not be stored under it."""
    program = """
import json, sys
from hotstart.keys import toolchain
early = toolchain.nvrtc(sys.argv[1])
import ctypes
ctypes.CDLL(sys.argv[2])
from cuda.bindings import nvrtc
from cuda.pathfinder import load_nvidia_dynamic_lib
assert int(nvrtc.nvrtcVersion()[0]) == 0
loaded = load_nvidia_dynamic_lib("nvrtc").abs_path
answers = [early.confirm(), early.confirm(loaded)]
late = toolchain.nvrtc("")
print(json.dumps([loaded, answers, late.watched[0][0], late.confirm(loaded), late.confirm()]))
"""
    loaded, answers, later, confirmed, again = in_child(program, kept, str(copy))
    assert loaded == str(copy) == later
    assert answers == [False, False]
    assert confirmed and again


def test_a_library_replaced_under_a_running_process_is_not_confirmed(copy: Path) -> None:
    program = """
import ctypes, json, os, shutil, sys
ctypes.CDLL(sys.argv[1])
from hotstart.keys import toolchain
found = toolchain.nvrtc("")
before = found.confirm()
shutil.copy(sys.argv[1], sys.argv[1] + ".new")
os.replace(sys.argv[1] + ".new", sys.argv[1])
print(json.dumps([before, found.confirm(sys.argv[1])]))
"""
    assert in_child(program, str(copy)) == [True, False]


def test_settings_that_change_the_output_are_part_of_it(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import hashlib, json
from cuda.bindings import nvrtc
source = b'extern "C" __global__ void k(float* a) { a[threadIdx.x] = sinf(a[1]) / a[2]; }'
_, program = nvrtc.nvrtcCreateProgram(source, b"k.cu", 0, None, None)
assert int(nvrtc.nvrtcCompileProgram(program, 1, [b"-arch=sm_90"])[0]) == 0
data = bytes(nvrtc.nvrtcGetPTXSize(program)[1])
nvrtc.nvrtcGetPTX(program, data)
print(json.dumps(hashlib.sha256(data).hexdigest()))
"""
    plain = toolchain.nvrtc(kept)
    monkeypatch.setenv("NV_NVVM_VERSION", "nvvm-latest")
    other = toolchain.nvrtc(kept)
    monkeypatch.delenv("NV_NVVM_VERSION")
    assert in_child(program) != in_child(program, NV_NVVM_VERSION="nvvm-latest"), "it no longer changes anything"
    assert encode(other) != encode(plain)
    assert encode(toolchain.nvrtc(kept)) == encode(plain)


# Remembering.


def test_an_identity_is_computed_once_in_a_process(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = toolchain.nvrtc(kept)
    monkeypatch.setattr(libraries, "find", unexpected)
    monkeypatch.setattr(memo, "read", unexpected)
    assert toolchain.nvrtc(kept) is first


def test_another_process_neither_reads_nor_loads_the_compiler(kept: str) -> None:
    program = """
import json, sys
before = set(sys.modules)
from hotstart.keys import toolchain
found = toolchain.nvrtc(sys.argv[1])
print(json.dumps([found.digests, sorted(set(sys.modules) - before)]))
"""
    digests, imported = in_child(program, kept)
    assert tuple(digests) == toolchain.nvrtc(kept).digests
    heavy = (
        "ctypes",
        "re",
        "mmap",
        "subprocess",
        "typing",
        "pathlib",
        "cuda",
        "json",
        "hotstart.keys.toolchain.programs",
    )
    assert [name for name in heavy if name in imported] == []


def test_a_changed_file_is_read_again(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "SETTLING_NS", -1)
    memo_dir = str(tmp_path / "memo")
    identity.LOADED["nvrtc"] = str(copy)
    before = toolchain.nvrtc(memo_dir)
    identity.COMPUTED.clear()
    with monkeypatch.context() as context:
        context.setattr(toolchain, "digest_files", unexpected)
        assert toolchain.nvrtc(memo_dir) == before
    # Same size, same time of modification: the change time gives it away.
    status = copy.stat()
    with copy.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    identity.COMPUTED.clear()
    assert toolchain.nvrtc(memo_dir) != before


def test_a_file_that_has_not_settled_is_not_remembered(copy: Path, tmp_path: Path) -> None:
    identity.LOADED["nvrtc"] = str(copy)
    toolchain.nvrtc(str(tmp_path / "memo"))
    assert not (tmp_path / "memo").exists()


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "shared", "link", "swap"])
def test_a_damaged_memo_never_gives_a_wrong_identity(
    kept: str, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo_dir = tmp_path / "memo"
    shutil.copytree(kept, memo_dir)
    written = memo_dir / "toolchain-nvrtc"
    right = toolchain.nvrtc(kept)
    assert written.stat().st_mode & 0o777 == 0o600
    data = written.read_bytes()
    if damage == "cut":
        written.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        written.write_bytes(data.replace(right.digests[0].encode(), right.digests[0][::-1].encode()))
    elif damage == "empty":
        written.write_bytes(b"")
    elif damage == "shared":
        written.chmod(0o622)
    elif damage == "link":
        written.rename(memo_dir / "aside")
        written.symlink_to("aside")
    else:
        written.write_bytes(data.replace(b"nvrtc\0", b"nvvvm\0"))
    toolchain.forget()
    read = []
    original = identity.digest_files
    monkeypatch.setattr(toolchain, "digest_files", lambda paths: read.append(paths) or original(paths))  # type: ignore[func-returns-value]
    assert toolchain.nvrtc(str(memo_dir)) == right
    assert read, "the damaged memo was believed"


def test_a_memo_that_cannot_be_written_is_no_harm(kept: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    dropped = memo.COUNTERS["dropped"]
    assert toolchain.nvrtc(str(tmp_path / "file")) == toolchain.nvrtc(kept)
    assert memo.COUNTERS["dropped"] == dropped + 1


def test_installations_share_a_memo_and_the_oldest_are_forgotten(tmp_path: Path) -> None:
    (tmp_path / "compiler").write_text("")
    known = identity.status(str(tmp_path / "compiler"))
    assert known is not None
    watched = ((str(tmp_path / "compiler"), known),)
    place = str(tmp_path / "memo")
    for number in range(100):
        identity._record(place, f"x\0{number}", Toolchain("x", str(number), ("d",), watched))
    kept = [number for number in range(100) if identity._recall(place, f"x\0{number}")]
    assert kept == list(range(100 - identity._REMEMBERED, 100))


# The others.


def test_what_is_not_there_has_no_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = libraries.Library("nothing", ("libnosuchthing.so.1",), ("nvidia/cu13/lib",), ("lib64",))
    assert libraries.find(nothing) is None
    with pytest.raises(UncacheableError, match="libnosuchthing"):
        toolchain._library(nothing, "")
    with pytest.raises(UncacheableError, match="no program"):
        toolchain.cxx(str(tmp_path / "g++"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with pytest.raises(UncacheableError, match="no program"):
        toolchain.nvcc()


@pytest.mark.parametrize("variable", ["LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX"])
def test_libraries_outside_of_wheels_are_found(tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    library = libraries.Library("other", ("libother.so.2", "libother.so.1"), ("nvidia/other/lib",), ("lib64", "lib"))
    path = tmp_path / "lib" / "libother.so.1"
    path.parent.mkdir()
    path.write_bytes(b"")
    monkeypatch.setenv(variable, str(path.parent if variable == "LD_LIBRARY_PATH" else tmp_path))
    assert libraries.find(library) == str(path)
    (tmp_path / "lib" / "libother.so.2").write_bytes(b"")
    assert libraries.find(library) == str(tmp_path / "lib" / "libother.so.2")


@pytest.mark.skipif(not Path("/etc/ld.so.cache").is_file(), reason="needs glibc's /etc/ld.so.cache")
def test_the_cache_of_the_loader_is_read() -> None:
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    known: dict[str, set[str]] = {}
    for line in listed.splitlines():
        label, arrow, path = line.partition(" => ")
        if arrow:
            known.setdefault(label.split()[0], set()).add(path)
    assert known, "ldconfig lists nothing"
    for soname, paths in known.items():
        assert libraries._loader_cache(soname) in paths
    assert libraries._loader_cache("libnosuchthing.so.1") is None


@pytest.mark.parametrize(("library", "package"), [("nvjitlink", "nvidia-nvjitlink"), ("nvvm", "nvidia-nvvm")])
def test_the_other_libraries(library: str, package: str, kept: str) -> None:
    try:
        found = getattr(toolchain, library)(kept)
    except UncacheableError as error:
        pytest.skip(f"needs {package}: {error}")
    assert found.version.count(".") == 2
    assert found != toolchain.nvrtc(kept)
    toolchain.forget()
    assert getattr(toolchain, library)(kept) == found


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_host_compiler_is_its_driver_and_what_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memo_dir = str(tmp_path / "memo")
    found = toolchain.cxx("g++", memo_dir)
    assert any(Path(path).name == "cc1plus" for path, _ in found.watched)
    toolchain.forget()
    from hotstart.keys.toolchain import programs

    with monkeypatch.context() as context:
        context.setattr(programs, "driver", unexpected)
        assert toolchain.cxx("g++", memo_dir) == found
    assert b"/usr" not in encode(found)


def test_ptxas_and_nvcc(tmp_path: Path) -> None:
    memo_dir = str(tmp_path / "memo")
    try:
        compiler = toolchain.nvcc(memo_dir=memo_dir)
    except UncacheableError as error:
        pytest.skip(f"needs nvcc on the PATH or under CUDA_HOME: {error}")
    assert compiler.version.count(".") == 2
    parts = {Path(path).name: path for path, _ in compiler.watched}
    assert {"cicc", "ptxas", "cudafe++"} <= set(parts)
    assembler = toolchain.ptxas(parts["ptxas"], memo_dir)
    assert assembler.version.count(".") == 2
    assert assembler.digests[0] in compiler.digests
    # A wrapper script is looked through, as nvcc says where it is.
    script = tmp_path / "nvcc"
    script.write_text(f'#!/bin/sh\nexec {parts["nvcc"]} "$@"\n')
    script.chmod(0o755)
    assert toolchain.nvcc(str(script), memo_dir) == compiler


def test_triton_is_identified_without_importing_it(tmp_path: Path) -> None:
    try:
        found = toolchain.triton(str(tmp_path / "memo"))
    except UncacheableError as error:
        pytest.skip(f"needs triton: {error}")
    assert found.version[0].isdigit() or found.version == "source"
    program = """
import json, sys
from hotstart.keys import toolchain
found = toolchain.triton(sys.argv[1])
print(json.dumps([found.version, found.digests, "triton" in sys.modules]))
"""
    assert in_child(program, str(tmp_path / "memo")) == [found.version, list(found.digests), False]


def test_a_package_without_a_record_counts_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "triton"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    monkeypatch.setattr(sys, "path", [str(package.parent)])
    memo_dir = str(tmp_path / "memo")
    before = toolchain.triton(memo_dir)
    (package / "more.py").write_text("y = 2\n")
    toolchain.forget()
    assert toolchain.triton(memo_dir) != before, "a file was added to a source tree"


def test_a_library_replaced_inside_an_installed_package_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    record = site / "triton-1.2.3.dist-info" / "RECORD"
    library = site / "triton" / "_C" / "libtriton.so"
    for path in (record, library):
        path.parent.mkdir(parents=True)
    (site / "triton" / "__init__.py").write_text("")
    library.write_bytes(b"wheel")
    record.write_text("triton/__init__.py,sha256=a,0\ntriton/_C/libtriton.so,sha256=b,5\n../bin/x,sha256=c,1\n")
    monkeypatch.setattr(sys, "path", [str(site)])
    first = toolchain.triton("")
    assert first.version == "1.2.3"
    # Scripts beside the package differ from one environment to the next and are not counted.
    record.write_text(record.read_text().replace("sha256=c", "sha256=d"))
    toolchain.forget()
    assert toolchain.triton("") == first
    library.write_bytes(b"built by hand")
    toolchain.forget()
    assert toolchain.triton("") != first
