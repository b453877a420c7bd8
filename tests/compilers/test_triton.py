"""Triton's kernels through ``CacheManager``: compiled once, served after a move, never served damaged.

Real Triton compiles for sm_90 without a GPU. ``compiled`` is what Triton's own
listener says: True for each compile, False for each hit.
"""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hotstart
from hotstart.compilers import shelf
from hotstart.compilers import triton as ours

triton = pytest.importorskip("triton", reason="needs Triton (pip install triton), no GPU")

import triton.language as tl  # noqa: E402
from triton import knobs  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource, CompilationError  # noqa: E402
from triton.runtime.cache import FileCacheManager, get_cache_manager  # noqa: E402

SM_90 = GPUTarget("cuda", 90, 32)


@triton.jit  # type: ignore[untyped-decorator]
def scale(x, n, block: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, block)
    tl.store(x + i, tl.load(x + i) * n)


@triton.jit  # type: ignore[untyped-decorator]
def broken(x, block: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.static_assert(block > 1000, "a block of this size is not supported")
    tl.store(x, block)


def compile_scale(block: int = 128, target: GPUTarget = SM_90) -> Any:
    signature = {"x": "*fp32", "n": "i32", "block": "constexpr"}
    return triton.compile(ASTSource(fn=scale, signature=signature, constexprs={"block": block}), target=target)


def compile_broken() -> Any:
    source = ASTSource(fn=broken, signature={"x": "*i32", "block": "constexpr"}, constexprs={"block": 64})
    return triton.compile(source, target=SM_90)


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


def folder_of(kernel: Any) -> Path:
    return Path(kernel.metadata_group["scale.json"]).parent


def entries(store: Path) -> list[Path]:
    return [path for path in (store / "entries").rglob("*") if path.is_file()]


# -- once, and then from the store ---------------------------------------------------


def test_a_kernel_is_one_entry_compiled_once(store: Path, compiled: list[bool]) -> None:
    first = compile_scale()
    use(store)
    second = compile_scale()
    assert compiled == [True, False]
    assert second.asm == first.asm
    assert second.metadata == first.metadata
    assert len(entries(store)) == 1
    assert ours.stats()["hit.shelf"] == 1


def test_another_block_size_or_target_is_another_entry(store: Path, compiled: list[bool]) -> None:
    kernels = [compile_scale(), compile_scale(256), compile_scale(target=GPUTarget("cuda", 100, 32))]
    assert compiled == [True] * 3
    assert len({kernel.asm["cubin"] for kernel in kernels}) == 3
    assert len(entries(store)) == 3


def test_without_the_files_beside_it_the_store_alone_serves(store: Path, compiled: list[bool]) -> None:
    first = compile_scale()
    shutil.rmtree(store / "triton")
    use(store)
    assert compile_scale().asm == first.asm
    assert compiled == [True, False]
    assert ours.stats()["hit.store"] == 1


def test_what_was_evicted_or_cleared_is_compiled_again(store: Path, compiled: list[bool]) -> None:
    compile_scale()
    use(store).clear()
    compile_scale()
    assert compiled == [True, True]


def test_the_entry_says_what_it_is_and_what_it_cost(store: Path) -> None:
    compile_scale()
    cache = hotstart.Cache(store)
    [path] = entries(store)
    entry = cache._disk.read(path.parent.name + path.name)  # type: ignore[union-attr]
    assert entry is not None
    assert (entry.kind, entry.name) == ("triton", "scale")
    assert entry.meta == {"triton": triton.__version__, "target": "cuda 90"}
    assert entry.cost > 0
    assert set(entry) >= {"scale.json", "scale.cubin", "scale.ptx"}


def test_a_hit_is_a_use_for_the_store(store: Path) -> None:
    compile_scale()
    [path] = entries(store)
    os.utime(path, ns=(1, 1))
    use(store)
    compile_scale()
    ours.stats()  # uses are told some at a time, and here
    assert path.stat().st_mtime_ns > 1


def test_a_use_that_is_told_late_does_not_hide_a_later_one(store: Path) -> None:
    compile_scale()
    [path] = entries(store)
    use(store)
    compile_scale()
    later = time.time_ns() + 10**12
    os.utime(path, ns=(later, later))
    ours.stats()
    assert path.stat().st_mtime_ns == later


# -- moved -----------------------------------------------------------------------------


def test_a_moved_store_still_hits_and_tritons_own_does_not(tmp_path: Path, compiled: list[bool]) -> None:
    use(tmp_path / "a" / "store")
    first = compile_scale()
    os.rename(tmp_path / "a", tmp_path / "b")
    use(tmp_path / "b" / "store")
    assert compile_scale().asm == first.asm
    assert compiled == [True, False]
    knobs.cache.manager_class = FileCacheManager
    for place in ("c", "d"):
        if place == "d":
            os.rename(tmp_path / "c", tmp_path / "d")
        knobs.cache.dir = str(tmp_path / place)
        compile_scale()
    assert compiled == [True, False, True, True]


def test_nothing_we_file_kernels_under_names_a_path(tmp_path: Path) -> None:
    use(tmp_path / "store")
    kernel = compile_scale()
    slip = folder_of(kernel) / ".hotstart.scale.json"
    assert str(tmp_path).encode() not in slip.read_bytes()
    for path in entries(tmp_path / "store"):
        assert str(tmp_path).encode() not in path.read_bytes()


def test_in_tritons_directory_files_have_tritons_names(tmp_path: Path, store: Path, compiled: list[bool]) -> None:
    # Inductor launches TRITON_CACHE_DIR/<key>/<function>.cubin without asking Triton.
    knobs.cache.dir = str(tmp_path / "chosen")
    kernel = compile_scale()
    use(store)
    knobs.cache.dir = str(tmp_path / "chosen")
    compile_scale()
    key = get_cache_manager(kernel.hash).key
    assert (tmp_path / "chosen" / key / "scale.cubin").read_bytes() == kernel.asm["cubin"]
    assert compiled == [True, False]
    assert not (store / "triton").exists()


def test_a_directory_that_all_may_write_is_not_served_from(tmp_path: Path, store: Path) -> None:
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    chosen.chmod(0o777)
    knobs.cache.dir = str(chosen)
    assert folder_of(compile_scale()).parent == store / "triton"


# -- damaged ---------------------------------------------------------------------------


def cut(data: bytes) -> bytes:
    return data[:100]


def flip(data: bytes) -> bytes:
    return data[:-50] + bytes([data[-50] ^ 1]) + data[-49:]


def damage(path: Path, how: Callable[[bytes], bytes]) -> None:
    """Change a file's content and nothing else that can be seen of it."""
    before, damaged = path.stat(), how(path.read_bytes())
    path.unlink()  # not in place: the file may be loaded into this process
    path.write_bytes(damaged)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("how", [cut, flip, lambda _: b""], ids=["truncated", "bit flipped", "emptied"])
@pytest.mark.parametrize("name", ["scale.cubin", "scale.json", "scale.ptx"])
def test_a_damaged_file_is_never_served(
    store: Path, compiled: list[bool], name: str, how: Callable[[bytes], bytes]
) -> None:
    first = compile_scale()
    damage(folder_of(first) / name, how)
    use(store)
    second = compile_scale()
    assert second.asm == first.asm
    assert second.metadata == first.metadata
    assert compiled == [True, False], "the store has it whole"
    assert ours.stats()["damaged"] == 1
    use(store)
    assert compile_scale().asm == first.asm
    assert ours.stats()["hit.shelf"] == 1, "and it was put right"


@pytest.mark.parametrize("how", [cut, flip], ids=["truncated", "bit flipped"])
def test_damaged_everywhere_it_is_compiled_again(
    store: Path, compiled: list[bool], how: Callable[[bytes], bytes]
) -> None:
    first = compile_scale()
    damage(folder_of(first) / "scale.cubin", how)
    damage(entries(store)[0], how)
    use(store)
    assert compile_scale().asm["cubin"] == first.asm["cubin"]
    assert compiled == [True, True]
    use(store)
    compile_scale()
    assert compiled == [True, True, False]


def test_tritons_own_manager_serves_a_truncated_cubin(tmp_path: Path, compiled: list[bool]) -> None:
    """The defect the tests above protect from: if this fails, Triton has learned to check."""
    knobs.cache.manager_class = FileCacheManager
    knobs.cache.dir = str(tmp_path / "triton")
    first = compile_scale()
    damage(folder_of(first) / "scale.cubin", cut)
    assert len(compile_scale().asm["cubin"]) == 100
    assert compiled == [True, False]


def test_the_files_of_another_kernel_are_not_served(store: Path, compiled: list[bool]) -> None:
    one, other = compile_scale(128), compile_scale(256)
    folder = folder_of(other)
    shutil.rmtree(folder)
    shutil.copytree(folder_of(one), folder)
    use(store)
    assert compile_scale(256).asm == other.asm
    assert compiled == [True, True, False]


# -- a compile that fails --------------------------------------------------------------


def test_a_source_that_does_not_compile_shows_tritons_error_and_blocks_nobody(
    store: Path, fork: Callable[..., Any]
) -> None:
    with pytest.raises(CompilationError, match="not supported"):
        compile_broken()
    gc.collect()

    def again() -> str:
        use(store)
        with pytest.raises(CompilationError, match="not supported"):
            compile_broken()
        return "failed likewise"

    assert [fork(again).result(30) for _ in range(3)] == ["failed likewise"] * 3
    assert entries(store) == []


def test_while_the_exception_is_kept_others_wait_no_longer_than_the_bound(
    store: Path, fork: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "WAIT", 0.3)
    with pytest.raises(CompilationError) as kept:
        compile_broken()
    assert [path.stat().st_size for path in (store / "flights").iterdir()] == [0], "still held"

    def again() -> int:
        cache = use(store)
        with pytest.raises(CompilationError):
            compile_broken()
        return int(cache.counters.snapshot().get("flight.gave_up", 0))

    assert fork(again).result(30) == 1
    del kept


def test_the_next_kernel_of_the_thread_lets_go_of_the_one_that_failed(store: Path) -> None:
    with pytest.raises(CompilationError) as kept:
        compile_broken()
    compile_scale()
    assert [path.stat().st_size for path in (store / "flights").iterdir()] == [1], "marked as failed"
    del kept


def test_asking_for_a_file_takes_no_lock(store: Path) -> None:
    manager = get_cache_manager("ab" * 32)
    assert manager.get_file("stub.so") is None
    assert list((store / "flights").iterdir()) == []
