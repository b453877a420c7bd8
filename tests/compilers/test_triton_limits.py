"""``CacheManager`` at its edges: single files, autotune results, and where it cannot or must not serve.

Real Triton compiles for sm_90 without a GPU. ``compiled`` is what Triton's own
listener says: True for each compile, False for each hit.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hotstart
from hotstart.compilers import shelf, triton_itself, triton_places
from hotstart.compilers import triton as ours

triton = pytest.importorskip("triton", reason="needs Triton (pip install triton), no GPU")

import triton.language as tl  # noqa: E402
from triton import knobs  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.build import compile_module_from_src  # noqa: E402
from triton.runtime.cache import CacheManager as Contract  # noqa: E402
from triton.runtime.cache import FileCacheManager, get_cache_manager, get_dump_manager  # noqa: E402

SM_90 = GPUTarget("cuda", 90, 32)


@triton.jit  # type: ignore[untyped-decorator]
def scale(x, n, block: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, block)
    tl.store(x + i, tl.load(x + i) * n)


def compile_scale(block: int = 128, target: GPUTarget = SM_90) -> Any:
    signature = {"x": "*fp32", "n": "i32", "block": "constexpr"}
    return triton.compile(ASTSource(fn=scale, signature=signature, constexprs={"block": block}), target=target)


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing settled, nothing remembered; Triton's knobs are put back afterwards."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setattr(ours, "_settled", {})
    monkeypatch.setattr(shelf, "_known", {})
    ours.counters.after_fork()
    with knobs.cache.scope(), knobs.compilation.scope():
        yield


@pytest.fixture
def compiled() -> Iterator[list[bool]]:
    seen: list[bool] = []

    def listen(**event: Any) -> None:
        seen.append(not event["cache_hit"])

    knobs.compilation.listener = listen
    yield seen
    knobs.compilation.listener = None


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that Triton uses; the files it is served from lie beside it."""
    path = tmp_path / "store"
    use(path)
    return path


def use(path: Path, **arguments: Any) -> hotstart.Cache:
    """Triton uses this store from now on, as a new process would."""
    shelf._known.clear()
    cache = hotstart.Cache(path, memory=0, **arguments)
    knobs.cache.manager_class = ours.CacheManager.over(cache)
    return cache


def by_environment(monkeypatch: pytest.MonkeyPatch, **variables: object) -> None:
    """Triton finds us as users configure it."""
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "hotstart.compilers.triton:CacheManager")
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def entries(store: Path) -> list[Path]:
    return [path for path in (store / "entries").rglob("*") if path.is_file()]


def listing(directory: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in directory.rglob("*")}


# -- single files ----------------------------------------------------------------------

STUB = """
#include <Python.h>
static PyObject* answer(PyObject* self, PyObject* none) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "stub", "", -1, methods};
PyMODINIT_FUNC PyInit_stub(void) { return PyModule_Create(&module); }
"""


@pytest.mark.skipif(not shutil.which("gcc") and not shutil.which("clang"), reason="needs a C compiler, as Triton does")
def test_a_c_stub_is_built_once_and_loaded_from_the_store(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("gcc") or shutil.which("clang")
    log, wrapper = tmp_path / "log", tmp_path / "cc"
    wrapper.write_text(f'#!/bin/sh\necho built >> "{log}"\nexec "{real}" "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", str(wrapper))
    find = getattr(triton.runtime.build, "_find_compiler", None)
    if find is not None:
        find.cache_clear()  # Triton remembers which compiler it found
    for _ in range(2):
        use(store)
        assert compile_module_from_src(STUB, "stub").answer() == 42
    [library] = (store / "triton").glob("*/stub*.so")
    data = library.read_bytes()
    library.unlink()  # not in place: it is loaded into this process
    library.write_bytes(data[:100])
    use(store)
    assert compile_module_from_src(STUB, "stub").answer() == 42
    assert log.read_text() == "built\n"
    if find is not None:
        find.cache_clear()


def test_on_a_mount_without_execution_libraries_go_elsewhere(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_places, "_is_noexec", lambda path: str(store) in path)
    manager = get_cache_manager("ab" * 32)
    path = manager.put(b"library", "stub.so")
    assert str(store) not in path
    assert get_cache_manager("ab" * 32).get_file("stub.so") == path
    assert str(store) in manager.put(b"text", "notes.txt")


# -- autotuning ------------------------------------------------------------------------


class Driver:
    """Enough of a driver to compile and "launch" with no GPU; counts what is timed."""

    timed = 0

    def get_current_target(self) -> GPUTarget:
        return SM_90

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., list[float]]:
        def bench(call: Callable[[], object], **_: object) -> list[float]:
            Driver.timed += 1
            return [float(Driver.timed)] * 3

        return bench

    launcher_cls = staticmethod(lambda source, metadata: lambda *args, **kwargs: None)

    class utils:  # noqa: N801  # Triton's name
        get_device_properties = staticmethod(lambda device: {"max_shared_mem": 232448, "multiprocessor_count": 132})
        load_binary = staticmethod(lambda *args: (0, 0, 32, 0, 1024))
        unload_module = staticmethod(lambda *args: None)


class Pointer:
    """What Triton needs to know of a tensor."""

    dtype = "fp32"

    def data_ptr(self) -> int:
        return 0


def tune(store: Path, device: str) -> int:
    """How many configurations a process on this device had to time. Runs in a child: a driver stays active."""
    use(store)
    triton.runtime.driver.set_active(Driver())
    triton_itself.device_name = lambda: device
    configurations = [triton.Config({"block": block}) for block in (64, 128, 256)]
    triton.autotune(configurations, key=["n"], cache_results=True)(scale)[(1,)](Pointer(), 3)
    return Driver.timed


def test_autotune_results_of_another_device_are_not_reused(store: Path, fork: Callable[..., Any]) -> None:
    h100, h200 = "NVIDIA H100 PCIe 114", "NVIDIA H200 132"
    timed = [fork(tune, store, device).result() for device in (h100, h100, h200, h200, h100)]
    assert timed == [3, 0, 3, 0, 0]


def test_on_a_device_without_a_name_autotune_results_are_not_kept(store: Path, fork: Callable[..., Any]) -> None:
    assert [fork(tune, store, "").result() for _ in range(2)] == [3, 3]


# -- where it cannot or must not serve ---------------------------------------------------


def test_a_triton_outside_the_tested_range_is_left_to_itself_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], compiled: list[bool]
) -> None:
    by_environment(monkeypatch, HOTSTART_HOME=tmp_path / "home", TRITON_CACHE_DIR=tmp_path / "triton")
    monkeypatch.setattr("hotstart.log._said", set())
    for version in ("3.4.1", "3.10.0", "4.0.0+git1234"):
        monkeypatch.setattr(ours, "_settled", {})
        monkeypatch.setattr(triton, "__version__", version)
        assert type(get_cache_manager("ab" * 32)) is FileCacheManager
    compile_scale()
    compile_scale()
    assert compiled == [True, False]
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Triton 3.4.1 is outside the tested range" in said
    assert not (tmp_path / "home").exists()


def test_a_manager_with_another_contract_is_not_imitated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    by_environment(monkeypatch, HOTSTART_HOME=tmp_path / "home", TRITON_CACHE_DIR=tmp_path / "triton")
    monkeypatch.setattr("hotstart.log._said", set())
    monkeypatch.setattr(Contract, "__abstractmethods__", frozenset({"get_file", "put", "open_group"}))
    assert type(get_cache_manager("ab" * 32)) is FileCacheManager
    assert "another contract" in capsys.readouterr().err


def test_the_installed_triton_is_within_the_tested_range() -> None:
    assert triton_itself.misfit(ours.CacheManager) == ""
    assert issubclass(ours.CacheManager, Contract)


def test_disabled_it_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    by_environment(
        monkeypatch, HOTSTART_HOME=tmp_path / "home", TRITON_CACHE_DIR=tmp_path / "triton", HOTSTART_DISABLE=1
    )
    assert type(get_cache_manager("ab" * 32)) is FileCacheManager
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("HOTSTART_HOME", "{file}/home"), ("HOTSTART_MAX_SIZE", "a lot"), ("HOTSTART_HOME", "{open}")],
)
def test_a_store_that_cannot_be_opened_is_said_once_and_triton_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open" / "store").mkdir(parents=True)
    (tmp_path / "open" / "store" / "format").touch()
    (tmp_path / "open" / "store").chmod(0o777)
    monkeypatch.setattr("hotstart.log._said", set())
    by_environment(monkeypatch, HOTSTART_HOME=tmp_path / "home", TRITON_CACHE_DIR=tmp_path / "triton")
    monkeypatch.setenv(variable, value.format(file=tmp_path / "file", open=tmp_path / "open"))
    assert type(get_cache_manager("ab" * 32)) is FileCacheManager
    compile_scale()
    said = capsys.readouterr().err
    assert said.count("Triton's own cache manager is used") == 1


def test_read_only_it_serves_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[bool]
) -> None:
    home = tmp_path / "home"
    by_environment(monkeypatch, HOTSTART_HOME=home)
    compile_scale()
    shutil.rmtree(home / "store" / "triton")
    before = listing(home)
    monkeypatch.setattr(ours, "_settled", {})
    shelf._known.clear()
    monkeypatch.setenv("HOTSTART_READ_ONLY", "1")
    compile_scale()
    compile_scale()
    compile_scale(512)
    ours.stats()
    assert compiled == [True, False, False, True]
    assert listing(home) == before


def test_with_no_place_for_a_store_kernels_compile_all_the_same(
    monkeypatch: pytest.MonkeyPatch, compiled: list[bool]
) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc, where even root can make no directory")
    by_environment(monkeypatch, HOTSTART_HOME="/proc/self/hotstart")
    assert compile_scale().asm["cubin"].startswith(b"\x7fELF")
    compile_scale()
    compile_scale(512)
    assert compiled == [True, False, True], "what this process has compiled it has"


def test_what_an_empty_read_only_store_does_not_take_is_compiled_once_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[bool]
) -> None:
    by_environment(monkeypatch, HOTSTART_HOME=tmp_path / "home", HOTSTART_READ_ONLY=1)
    first = compile_scale()
    assert compile_scale().asm == first.asm
    assert compiled == [True, False]
    assert ours.stats()["hit.shelf"] == 1


def test_what_does_not_fit_into_the_store_is_compiled_once_in_a_process(tmp_path: Path, compiled: list[bool]) -> None:
    use(tmp_path / "store", max_size=1024)
    first = compile_scale()
    assert compile_scale().asm == first.asm
    assert compiled == [True, False]


def test_a_triton_that_says_more_is_left_to_itself_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Later(FileCacheManager):  # type: ignore[misc]  # Triton has no types
        def __init__(self, key: str, override: bool = False, dump: bool = False, namespace: str = "") -> None:
            super().__init__(key, override, dump)
            self.namespace = namespace

    monkeypatch.setattr("hotstart.log._said", set())
    monkeypatch.setattr("triton.runtime.cache.FileCacheManager", Later)
    by_environment(monkeypatch, HOTSTART_HOME=tmp_path / "home", TRITON_CACHE_DIR=tmp_path / "triton")
    for _ in range(2):
        made: Any = ours.CacheManager("ABC", False, False, namespace="x")
        assert type(made) is Later
        assert made.namespace == "x"
    assert type(ours.CacheManager("ABC", False, False, "y")) is Later
    assert capsys.readouterr().err.count("its own is used") == 1


def test_a_full_disk_under_the_shelf_does_not_stop_a_compile(
    store: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[bool]
) -> None:
    real = shelf.write

    def full(folder: str, name: str, data: bytes) -> str:
        if folder.startswith(str(store)):
            raise OSError(28, "No space left on device")
        return real(folder, name, data)

    monkeypatch.setattr(shelf, "write", full)
    first = compile_scale()
    use(store)
    assert compile_scale().asm == first.asm
    assert compiled == [True, False], "the store had room"
    assert ours.stats()["error.shelf.ENOSPC"] > 0


def test_dumping_and_odd_keys_are_tritons_own_business(tmp_path: Path, store: Path) -> None:
    knobs.cache.dump_dir = str(tmp_path / "dump")
    knobs.cache.dir = str(tmp_path / "triton")
    assert type(get_dump_manager("ab" * 32)) is FileCacheManager
    assert type(knobs.cache.manager_class("../escape")) is FileCacheManager


def test_what_triton_writes_into_a_file_it_asked_back_for_is_kept(store: Path) -> None:
    # With USE_IR_LOC Triton asks for a file in the middle of the compile and writes it anew.
    manager = get_cache_manager("ab" * 32)
    assert manager.get_group("k.json") is None
    group = {"k.ttir": manager.put("before", "k.ttir"), "k.json": manager.put("{}", "k.json")}
    Path(manager.get_file("k.ttir")).write_text("after")
    manager.put_group("k.json", group)
    use(store)
    found = get_cache_manager("ab" * 32).get_group("k.json")
    assert Path(found["k.ttir"]).read_text() == "after"


def test_always_compiling_stores_what_it_compiles(store: Path, compiled: list[bool]) -> None:
    knobs.compilation.always_compile = True
    compile_scale()
    compile_scale()
    knobs.compilation.always_compile = False
    compile_scale()
    assert compiled == [True, True, False]


def test_what_the_store_leaves_on_the_shelf_stays_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "GRACE_NS", 0)
    monkeypatch.setattr(triton_places, "_SHARE", 1 << 20)
    use(tmp_path / "store")
    for block in (16, 32, 64, 128):
        compile_scale(block)
    compile_scale(256)  # each sweep removes what an earlier one withdrew
    assert len(entries(tmp_path / "store")) == 5
    assert len(list((tmp_path / "store" / "triton").glob("*/scale.cubin"))) <= 2
