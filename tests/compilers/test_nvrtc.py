"""NVRTC through the cache equals NVRTC without it, whatever changes underneath.

Every "wrong bytes served" of today's caches that concerns NVRTC is staged here, with the
real compiler: the cached result is compared with a compile that no cache has seen.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hotstart
from hotstart.compilers import nvrtc
from hotstart.keys import headers as headers_module

pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc")

PLAIN = 'extern "C" __global__ void k(float* a) { a[threadIdx.x] = a[threadIdx.x] / 3.f + 1.f; }'
INCLUDING = '#include "value.h"\nextern "C" __global__ void k(int* a) { a[0] = VALUE; }'

Fresh = Callable[..., dict[str, bytes]]


def test_a_hit_gives_back_everything(cache: hotstart.Cache) -> None:
    source = "template <class T> __global__ void scale(T* a, T b) { a[threadIdx.x] *= b; int unused; }"
    arguments: dict[str, Any] = {
        "arch": "sm_90",
        "name_expressions": ["scale<float>", "scale<double>"],
        "targets": ("cubin", "ptx", "ltoir"),
        "cache": cache,
    }
    first = nvrtc.compile(source, **arguments)
    second = nvrtc.compile(source, **arguments)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert first.uncacheable == second.uncacheable == ""
    assert second.cubin is not None and second.cubin.startswith(b"\x7fELF")
    assert second.ptx is not None and b".version" in second.ptx
    for name in ("cubin", "ptx", "ltoir", "lowered_names", "log", "cost"):
        assert getattr(first, name) == getattr(second, name), name
    assert second.lowered_names == {"scale<float>": "_Z5scaleIfEvPT_S0_", "scale<double>": "_Z5scaleIdEvPT_S0_"}
    assert "unused" in second.log
    assert second.cost > 0
    assert second.lowered_names["scale<float>"].encode() in second.ptx


def test_only_what_was_asked_for_is_made(cache: hotstart.Cache) -> None:
    kernel = nvrtc.compile(PLAIN, arch="compute_90", targets=["ptx"], cache=cache)
    assert (kernel.cubin, kernel.ltoir) == (None, None)
    assert kernel.ptx is not None


@pytest.mark.parametrize(
    "change",
    [
        {"arch": "sm_80"},
        {"arch": "sm_100"},
        {"options": ["-use_fast_math"]},
        {"options": ["-DX=1"]},
        {"options": ["--maxrregcount=16"]},
        {"options": ["-lineinfo"]},
        {"options": ["-G"]},
        {"name": "other"},
        {"name_expressions": ["k"]},
        {"targets": ("ptx",)},
        {"targets": ("cubin", "ptx")},
        {"source": PLAIN + " "},
        {"headers": {"unused.h": ""}},
    ],
    ids=str,
)
def test_every_argument_counts(cache: hotstart.Cache, change: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"source": PLAIN, "arch": "sm_90", "targets": ("cubin",)}
    nvrtc.compile(**arguments, cache=cache)
    assert nvrtc.compile(**arguments, cache=cache).from_cache
    changed = {**arguments, **change}
    assert not nvrtc.compile(**changed, cache=cache).from_cache


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["-DA=1", "-DB=2"], ["--define-macro=A=1", "-D", "B=2"]),
        (["-std=c++17"], ["--std=c++17"]),
        (["--use_fast_math"], ["-use_fast_math"]),
        (["-I", "x", "-Iy"], ["--include-path=x", "--include-path=y"]),
    ],
)
def test_spellings_of_the_same_options_hit(cache: hotstart.Cache, one: list[str], other: list[str]) -> None:
    nvrtc.compile(PLAIN, arch="sm_90", options=one, cache=cache)
    assert nvrtc.compile(PLAIN, arch="sm_90", options=other, cache=cache).from_cache


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def stage_edit() -> None:
    write("value.h", "#define VALUE 1234567\n")


def stage_earlier() -> None:
    write("first/value.h", "#define VALUE 7654321\n")


def stage_nested() -> None:
    write("inner/deep.h", "#define DEEP 99\n")


def stage_same_size_same_time() -> None:
    """An edit that keeps size and modification time: only the change time tells."""
    before = os.stat("second/value.h")
    write("second/value.h", "#define VALUE 2\n")
    os.utime("second/value.h", ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("setup", "options", "change"),
    [
        ({"value.h": "#define VALUE 1\n"}, [], stage_edit),
        ({"second/value.h": "#define VALUE 1\n"}, ["-Ifirst", "-Isecond"], stage_earlier),
        ({"second/value.h": "#define VALUE 1\n"}, ["-Isecond"], stage_edit),
        ({"second/value.h": "#define VALUE 1\n"}, ["-Isecond"], stage_same_size_same_time),
        (
            {"value.h": '#include "inner/deep.h"\n#define VALUE DEEP\n', "inner/deep.h": "#define DEEP 1\n"},
            [],
            stage_nested,
        ),
        (
            {
                "value.h": "#define WHERE <inner/deep.h>\n#include WHERE\n#define VALUE DEEP\n",
                "inner/deep.h": "#define DEEP 1\n",
            },
            ["-I."],
            stage_nested,
        ),
        (
            {"value.h": '#if __has_include("inner/deep.h")\n#define VALUE 5\n#else\n#define VALUE 6\n#endif\n'},
            [],
            stage_nested,
        ),
    ],
)  # fmt: skip
def test_a_changed_header_is_never_missed(
    cache: hotstart.Cache, fresh: Fresh, setup: dict[str, str], options: list[str], change: Callable[[], None]
) -> None:
    for path, text in setup.items():
        write(path, text)

    def compiled() -> nvrtc.CachedKernel:
        return nvrtc.compile(INCLUDING, arch="sm_90", options=options, targets=("ptx",), cache=cache)

    before = compiled()
    assert compiled().from_cache
    assert before.ptx == fresh(INCLUDING, options=options)["ptx"]
    change()
    after = compiled()
    assert after.ptx == fresh(INCLUDING, options=options)["ptx"]
    assert after.ptx != before.ptx
    assert not after.from_cache


def test_an_absolute_include_counts(cache: hotstart.Cache, tmp_path: Path) -> None:
    header = tmp_path / "elsewhere" / "value.h"
    source = INCLUDING.replace("value.h", str(header))
    kernels = []
    for value in (1, 2):
        write(str(header), f"#define VALUE {value}\n")
        kernels.append(nvrtc.compile(source, arch="sm_90", targets=("ptx",), cache=cache))
    assert not kernels[1].from_cache
    assert kernels[0].ptx != kernels[1].ptx


def test_a_moved_checkout_hits(cache: hotstart.Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("here", "there"):
        write(str(tmp_path / place / "inc" / "value.h"), "#define VALUE 1\n")
    hits = []
    for place in ("here", "there"):
        monkeypatch.chdir(tmp_path / place)
        headers_module.forget()
        hits.append(nvrtc.compile(INCLUDING, arch="sm_90", options=["-Iinc"], cache=cache).from_cache)
    monkeypatch.chdir("/")
    option = [f"-I{tmp_path / 'there' / 'inc'}"]
    hits.append(nvrtc.compile(INCLUDING, arch="sm_90", options=option, cache=cache).from_cache)
    assert hits == [False, True, True]


def test_headers_in_memory_count(cache: hotstart.Cache) -> None:
    made = [
        nvrtc.compile(INCLUDING, arch="sm_90", headers={"value.h": f"#define VALUE {value}"}, cache=cache)
        for value in (1, 2, 1)
    ]
    assert [kernel.from_cache for kernel in made] == [False, False, True]
    assert made[0].cubin == made[2].cubin != made[1].cubin


def test_another_patch_release_is_another_compiler(cache: hotstart.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged through the identity: two releases of the library cannot be loaded by one process."""
    from hotstart.keys import toolchain
    from hotstart.keys.toolchain.identity import Toolchain

    nvrtc.compile(PLAIN, arch="sm_90", cache=cache)
    real = toolchain.nvrtc()
    other = Toolchain(real.name, real.version, tuple(digest[::-1] for digest in real.digests), real.watched)
    monkeypatch.setattr(toolchain, "nvrtc", lambda: other)
    assert not nvrtc.compile(PLAIN, arch="sm_90", cache=cache).from_cache


def test_a_header_that_changes_during_the_compile_is_not_stored(
    cache: hotstart.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("value.h", "#define VALUE 1\n")
    real = nvrtc._compile

    def meddling(*arguments: Any) -> hotstart.Compiled:
        made = real(*arguments)
        write("value.h", "#define VALUE 2\n")
        return made

    monkeypatch.setattr(nvrtc, "_compile", meddling)
    assert nvrtc.compile(INCLUDING, arch="sm_90", cache=cache).cubin is not None
    assert len(cache) == 0
    assert cache.stats()["refused"] == {"withheld": 1}


def test_what_cannot_be_keyed_is_compiled_and_says_why(cache: hotstart.Cache) -> None:
    dated = 'extern "C" __global__ void k(char* a) { a[0] = __TIME__[0]; }'
    for _ in range(2):
        kernel = nvrtc.compile(dated, arch="sm_90", cache=cache)
        assert kernel.cubin is not None
        assert not kernel.from_cache
        assert "the time of the compile" in kernel.uncacheable
    traced = nvrtc.compile(PLAIN, arch="sm_90", options=["-fdevice-time-trace=out.json"], cache=cache)
    assert traced.cubin is not None and "time-trace" in traced.uncacheable
    assert len(cache) == 0


def test_a_source_that_does_not_compile_says_what_nvrtc_said(cache: hotstart.Cache) -> None:
    for _ in range(2):
        with pytest.raises(hotstart.CompileError, match="undefined") as caught:
            nvrtc.compile('extern "C" __global__ void k() { nonsense(); }', arch="sm_90", cache=cache)
    assert "nonsense" in caught.value.log
    assert caught.value.status == "NVRTC_ERROR_COMPILATION"
    assert pickle.loads(pickle.dumps(caught.value)).log == caught.value.log
    assert len(cache) == 0


def test_failures_are_remembered_only_if_asked(cache: hotstart.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    real = nvrtc._run

    def counted(*arguments: Any) -> Any:
        runs.append(1)
        return real(*arguments)

    monkeypatch.setattr(nvrtc, "_run", counted)
    logs = []
    for _ in range(3):
        with pytest.raises(hotstart.CompileError) as caught:
            nvrtc.compile("nonsense", arch="sm_90", cache=cache, cache_failures=True)
        logs.append(caught.value.log)
    assert len(runs) == 1
    assert len(set(logs)) == 1
    with pytest.raises(hotstart.CompileError):
        nvrtc.compile("nonsense", arch="sm_90", cache=cache)
    assert len(runs) == 2


def test_a_failure_of_a_header_half_saved_is_not_remembered(
    cache: hotstart.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("value.h", "#define VALUE 1\n")
    real = nvrtc._compile

    def meddling(*arguments: Any) -> hotstart.Compiled:
        write("value.h", "#error half saved\n")
        try:
            return real(*arguments)
        finally:
            write("value.h", "#define VALUE 1\n")

    arguments: dict[str, Any] = {"arch": "sm_90", "cache": cache, "cache_failures": True}
    with monkeypatch.context() as context:
        context.setattr(nvrtc, "_compile", meddling)
        with pytest.raises(hotstart.CompileError, match="half saved"):
            nvrtc.compile(INCLUDING, **arguments)
    assert nvrtc.compile(INCLUDING, **arguments).cubin is not None


@pytest.mark.parametrize("status", ["NVRTC_ERROR_OUT_OF_MEMORY", "NVRTC_ERROR_INTERNAL_ERROR"])
def test_failures_of_the_machine_are_not_remembered(
    cache: hotstart.Cache, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """Staged: NVRTC cannot be made to run out of memory at will."""

    def failing(*_: Any) -> hotstart.Compiled:
        raise hotstart.CompileError(f"default_program: {status}", "", status)

    with monkeypatch.context() as context:
        context.setattr(nvrtc, "_compile", failing)
        with pytest.raises(hotstart.CompileError, match=status):
            nvrtc.compile(PLAIN, arch="sm_90", cache=cache, cache_failures=True)
    assert nvrtc.compile(PLAIN, arch="sm_90", cache=cache, cache_failures=True).cubin is not None


def test_name_expressions_from_a_generator_are_compiled(cache: hotstart.Cache) -> None:
    source = "template <class T> __global__ void scale(T* a) { *a *= 2; }"
    names = ["scale<float>", "scale<int>"]
    arguments: dict[str, Any] = {"arch": "sm_90", "targets": ("ptx",), "cache": cache}
    once = nvrtc.compile(source, name_expressions=(name for name in names), **arguments)
    assert sorted(once.lowered_names) == sorted(names)
    again = nvrtc.compile(source, name_expressions=names, **arguments)
    assert again.from_cache and again.ptx == once.ptx and again.ptx is not None
    assert all(lowered.encode() in again.ptx for lowered in again.lowered_names.values())


def test_options_and_targets_from_a_generator_are_used(cache: hotstart.Cache) -> None:
    source = 'extern "C" __global__ void k(int* a) { *a = N; }'
    made = nvrtc.compile(source, arch="sm_90", options=iter(["-DN=7"]), targets=iter(["ptx"]), cache=cache)
    assert made.ptx is not None and made.cubin is None
    assert nvrtc.compile(source, arch="sm_90", options=["-DN=7"], targets=["ptx"], cache=cache).from_cache


def test_link_time_code_shows_where_it_was_compiled_and_machine_code_does_not(
    cache: hotstart.Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "static __device__ int s; __global__ void k(int** p) { *p = &s; }"
    (tmp_path / "other").mkdir()
    for target, hits in (
        ("ltoir", [False, False, False]),
        ("cubin", [False, True, True]),
        ("ptx", [False, True, True]),
    ):
        made = []
        for place, name in (("work", "/a/x.cu"), ("other", "/a/x.cu"), ("work", "/b/x.cu")):
            monkeypatch.chdir(tmp_path / place)
            made.append(nvrtc.compile(source, arch="sm_90", name=name, targets=[target], cache=cache))
        assert [kernel.from_cache for kernel in made] == hits, target
        assert len({bytes(getattr(kernel, target)) for kernel in made}) == (3 if target == "ltoir" else 1)


def test_a_project_beside_a_version_file_is_no_toolkit(cache: hotstart.Cache) -> None:
    """The whole way: any ``version.json`` beside ``include`` once hid every edit."""
    write("version.json", '{"version": "1.2.3"}')
    write("include/value.h", "#define VALUE 1\n")
    arguments: dict[str, Any] = {"arch": "sm_90", "options": ["-Iinclude"], "targets": ("ptx",), "cache": cache}
    before = nvrtc.compile(INCLUDING, **arguments)
    write("include/value.h", "#define VALUE 2\n")
    after = nvrtc.compile(INCLUDING, **arguments)
    assert not after.from_cache and after.ptx != before.ptx


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"arch": "90"}, "arch"),
        ({"arch": 90}, "arch"),
        ({"arch": ["sm_90"]}, "arch"),
        ({"targets": ("sass",)}, "targets"),
        ({"targets": ()}, "targets"),
        ({"targets": None}, "targets"),
        ({"targets": "cubin"}, "targets"),
        ({"targets": [["cubin"]]}, "targets"),
        ({"arch": "compute_90", "targets": ("cubin",)}, "cubin"),
        ({"source": 5}, "source"),
        ({"source": None}, "source"),
        ({"source": "\udc80"}, "source"),
        ({"name": None}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"options": "-O3"}, "options"),
        ({"options": None}, "options"),
        ({"options": ["-O3", 3]}, r"options\[1\]"),
        ({"options": ["-DX=\0"]}, r"options\[0\]"),
        ({"headers": ["a"]}, "headers"),
        ({"headers": {"a.h": 3}}, r"headers\['a.h'\]"),
        ({"headers": {"a.h": bytearray(b"")}}, r"headers\['a.h'\]"),
        ({"headers": {3: ""}}, "headers"),
        ({"name_expressions": "k"}, "name_expressions"),
        ({"name_expressions": 1}, "name_expressions"),
        ({"name_expressions": ["k", 1]}, r"name_expressions\[1\]"),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused_in_a_line_that_names_them(
    cache: hotstart.Cache, arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(hotstart.UsageError, match=named) as caught:
        nvrtc.compile(**{"source": PLAIN, "arch": "sm_90", "cache": cache, **arguments})
    assert "\n" not in str(caught.value)
    assert len(cache) == 0


def test_an_unknown_architecture_is_nvrtcs_own_error(cache: hotstart.Cache) -> None:
    with pytest.raises(hotstart.CompileError, match="INVALID_OPTION") as caught:
        nvrtc.compile(PLAIN, arch="sm_7", cache=cache)
    assert "gpu-architecture" in caught.value.log


def test_an_unreadable_header_is_the_compilers_business(cache: hotstart.Cache) -> None:
    write("value.h/inside", "")  # a directory where a header should be
    with pytest.raises(hotstart.CompileError, match="is a directory"):
        nvrtc.compile(INCLUDING, arch="sm_90", cache=cache)


def test_a_hit_neither_loads_nvrtc_nor_imports_its_bindings(tmp_path: Path) -> None:
    program = f"""
import sys, hotstart
from hotstart.compilers import nvrtc
with hotstart.Cache({str(tmp_path / "s")!r}) as cache:
    kernel = nvrtc.compile({PLAIN!r}, arch="sm_90", cache=cache)
loaded = "libnvrtc" in open("/proc/self/maps").read()
print(kernel.from_cache, loaded, any(name.startswith("cuda") for name in sys.modules))
"""
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in "12"]
    assert [run.stdout.split() for run in runs] == [["False", "True", "True"], ["True", "False", "False"]]


def test_keys_by_hand(cache: hotstart.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    key = nvrtc.KernelKey(nvrtc.hash_source(PLAIN), "sm_90", nvrtc.hash_options(["-O3", "-DX=1"]))
    assert nvrtc.get(key, cache=cache) is None
    assert nvrtc.insert(key, nvrtc.CachedKernel("ptx text", cubin=b"\x7fELF", log="warn", cost=2.0), cache=cache)
    found = nvrtc.get(key, cache=cache)
    assert found is not None and found.from_cache
    assert (found.ptx, found.cubin, found.ltoir, found.log, found.cost) == (b"ptx text", b"\x7fELF", None, "warn", 2.0)
    assert nvrtc.hash_options(["-DX=1"]) == nvrtc.hash_options(["--define-macro=X=1"])
    assert nvrtc.hash_options(["-DX=1"]) != nvrtc.hash_options(["-DX=2"])
    for other in (
        nvrtc.KernelKey(nvrtc.hash_source(PLAIN + " "), "sm_90", key.options_hash),
        nvrtc.KernelKey(key.source_hash, "sm_80", key.options_hash),
        nvrtc.KernelKey(key.source_hash, "sm_90", nvrtc.hash_options([])),
    ):
        assert nvrtc.get(other, cache=cache) is None
    monkeypatch.setattr(nvrtc, "__version__", "99.0")
    assert nvrtc.get(key, cache=cache) is None
    with pytest.raises(hotstart.UsageError, match="source_hash"):
        nvrtc.KernelKey("", "sm_90", "x")
