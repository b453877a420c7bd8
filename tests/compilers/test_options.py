"""Options in canonical form: variants that NVRTC takes for one are one, and what it tells apart stays apart.

Everything said here about NVRTC is asked of the installed one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotstart.compilers import options
from hotstart.errors import UsageError
from hotstart.keys.digest import encode
from hotstart.keys.headers import closure

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc: the test extra")

SOURCE = """
#if __has_include(<a.h>)
#include <a.h>
#endif
#define NAME_(x) v_##x
#define NAME(x) NAME_(x)
#ifdef X
__device__ int NAME(X) = 1;
#endif
extern "C" __global__ void k(float* a, float b, float c) { a[0] = a[1] * b + c; a[1] = a[2] / a[3]; a[4] = sqrtf(b); }
"""


def compiled(given_options: Sequence[str]) -> bytes | None:
    """The PTX under these options, None where NVRTC refuses them or the source does not compile."""
    _, program = nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"k.cu", 0, None, None)
    flags = [option.encode() for option in given_options]
    try:
        if int(nvrtc.nvrtcCompileProgram(program, len(flags), flags)[0]) != 0:
            return None
        ptx = bytes(nvrtc.nvrtcGetPTXSize(program)[1])
        nvrtc.nvrtcGetPTX(program, ptx)
        return ptx
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, own_home: None) -> None:
    """``inc`` and ``other`` in the working directory, each with its own ``a.h``."""
    for name in ("inc", "other"):
        Path(name).mkdir()
        Path(name, "a.h").write_text(f"__device__ int from_{name} = 1;\n")


#: Options in each group are one to NVRTC.
VARIANTS: list[list[list[str]]] = [
    [["-Iinc"], ["-I", "inc"], ["-I inc"], ["-I=inc"], ["--include-path=inc"], ["--include-path", "inc"], [" -Iinc "]],
    [["-DX=q"], ["-D", "X=q"], ["-D X=q"], ["-D=X=q"], ["--define-macro=X=q"], ["--define-macro", "X=q"]],
    [["-DX"], ["-DX=1"], ["-D", "X"], ["--define-macro", " X "]],
    [["-DX=q", "-DY=r"], ["-DY=r", "-DX=q"]],
    [["-UX"], ["-U", "X"], ["-U=X"], ["--undefine-macro=X"], ["--undefine-macro", "X"]],
    [["-arch=sm_90"], ["-arch", "sm_90"], ["--gpu-architecture=sm_90"], ["--gpu-architecture", "sm_90"]],
    [["-arch=sm_90"], ["-arch=sm_90", "--gpu-architecture=sm_90"], ["-arch=sm_90 "]],
    [["-fmad=false"], ["--fmad=false"], ["-fmad", "false"], ["--fmad", "false"]],
    [["-std=c++20"], ["--std=c++20"]],
    [["-use_fast_math"], ["--use_fast_math"], ["-use_fast_math", "-use_fast_math"]],
    [["-use_fast_math", "-ftz=false"], ["-ftz=false", "--use_fast_math"]],
    [["-dc"], ["--device-c"], ["-rdc=true"], ["--relocatable-device-code", "true"]],
    [["-dw"], ["--device-w"], ["-rdc=false"]],
    [["-lineinfo"], ["--generate-line-info"]],
    [["-G"], ["--device-debug"]],
    [["-maxrregcount=32"], ["-maxrregcount", "32"], ["--maxrregcount=32"]],
    [["-Xptxas=-O1"], ["-Xptxas", "-O1"], ["--ptxas-options=-O1"], ["--ptxas-options", "-O1"]],
    [["-w"], ["--disable-warnings"]],
    [["-default-device"], ["--device-as-default-execution-space"]],
    [["-dopt=on"], ["-dopt", "on"], ["--dopt=on"]],
    [["-ewp"], ["--extensible-whole-program"]],
    [["-Werror=reorder"], ["--warning-as-error=reorder"], ["-Werror", "reorder"]],
    [["-Ofc=max"], ["--Ofast-compile=max"], ["--Ofast-compile", "max"]],
]


@pytest.mark.parametrize("group", VARIANTS, ids=lambda group: " ".join(group[0]))
def test_spellings_of_one_option_are_one(group: list[list[str]]) -> None:
    outputs = {compiled(variant) for variant in group}
    assert len(outputs) == 1 and None not in outputs, "NVRTC tells them apart"
    assert len({encode(options.parse(variant)) for variant in group}) == 1
    assert len({options.parse(variant) for variant in group}) == 1
    assert len({closure(SOURCE, **options.parse(variant).search()).digest for variant in group}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["-DX=q", "-DX=r"], ["-DX=r", "-DX=q"]),
        (["-DX=q", "-UX"], ["-UX", "-DX=q"]),
        (["-DX=q", "-UX", "-DX=r"], ["-DX=r", "-UX", "-DX=q"]),
        (["-arch=sm_90", "-arch=sm_80"], ["-arch=sm_80", "-arch=sm_90"]),
        (["-fmad=true", "-fmad=false"], ["-fmad=false", "-fmad=true"]),
        (["-fmad=true", "-fmad=false", "-fmad=true"], ["-fmad=true", "-fmad=false"]),
        (["-DX=1"], ["-UX"]),
        (["-fmad=false"], ["-prec-div=false"]),
        (["-DX(a)=q"], ["-DX=q"]),
    ],
)
def test_what_nvrtc_tells_apart_stays_apart(one: list[str], other: list[str]) -> None:
    assert compiled(one) != compiled(other), "NVRTC does not tell them apart"
    assert encode(options.parse(one)) != encode(options.parse(other))


def test_the_order_of_directories_is_kept_for_the_closure() -> None:
    one, other = ["-Iinc", "-Iother"], ["-Iother", "-Iinc"]
    assert compiled(one) != compiled(other)
    first, second = options.parse(one), options.parse(other)
    assert first.include_dirs == ("inc", "other") and second.include_dirs == ("other", "inc")
    # Alone they are no part of the form: what is in them is for the closure to say.
    assert encode(first) == encode(second)
    assert closure(SOURCE, **first.search()) != closure(SOURCE, **second.search())
    assert first != second and first.complete() != second.complete()


def test_an_argument_is_taken_even_if_it_looks_like_an_option() -> None:
    assert compiled(["-I", "-default-device"]) is not None
    assert options.parse(["-I", "-default-device"]).include_dirs == ("-default-device",)
    assert options.parse(["-I", ""]).include_dirs == ("",)
    assert options.parse(["-I"]).include_dirs == ("",)


def test_what_the_search_for_headers_has_to_know() -> None:
    read = options.parse(["-DA=1", "-UB", "-include=p.h", "--pre-include", "q.h", "-no-source-include", "-lineinfo"])
    assert read.search() == {
        "include_dirs": (),
        "defines": ("A=1",),
        "undefines": ("B",),
        "pre_includes": ("p.h", "q.h"),
        "source_dir": False,
        "paths": True,
    }
    plain = options.parse(["-arch=sm_80", "-arch=sm_90a"])
    assert plain.source_dir and not plain.paths and plain.arch == "sm_90a"
    assert options.parse([]).arch is None


@pytest.mark.parametrize(
    "refused",
    [
        ["-time=t.csv"],
        ["--time=-"],
        ["-fdevice-time-trace=trace"],
        ["-pch"],
        ["--create-pch=x.pch"],
        ["-use-pch=x.pch"],
        ["-pch-dir=."],
        ["-Xptxas=-o=x"],
        ["-Xptxas", "--options-file=x"],
        ["--use-bundled-headers=bundle"],
    ],
)
def test_side_effects_and_outside_content_are_refused_with_a_reason(refused: list[str]) -> None:
    (reason,) = options.parse(["-arch=sm_90", *refused]).refusals
    assert len(reason) > 20
    assert options.parse(["-arch=sm_90"]).refusals == ()


def test_bundled_headers_count_as_directories_once_they_are_there() -> None:
    given_options = ["-Iinc", "--use-bundled-headers=bundle", "-Iother"]
    assert options.parse(given_options).refusals
    assert compiled(["-arch=sm_90", *given_options]) is not None, "NVRTC installs them"
    read = options.parse(given_options)
    assert read.refusals == ()
    assert read.include_dirs == ("inc", "bundle", "bundle/cccl", "other")


def test_what_is_not_known_is_kept_as_it_is_and_in_order() -> None:
    one = options.parse(["-new", "value", "-arch=sm_90", "--other=1"])
    two = options.parse(["--other=1", "-new", "value", "-arch=sm_90"])
    assert encode(one) != encode(two)
    assert encode(options.parse(["-new", "value"])) != encode(options.parse(["-new", "other"]))
    assert encode(options.parse(["-new", "-Ia"])) != encode(options.parse(["-new", "-Ib"]))
    # Forms that NVRTC does not accept are not taken for those it does.
    for wrong in ("-std c++17", "-arch sm_90", "-use_fast_math=true", "-gpu-architecture=sm_90", "--fmad false"):
        assert compiled([wrong]) is None
        assert options.parse([wrong]).canonical[0][0] == ""


def test_bytes_and_text_are_one_and_nothing_else_is_taken() -> None:
    assert options.parse([b"-arch=sm_90"]) == options.parse(["-arch=sm_90"])
    with pytest.raises(UsageError, match=r"options\[1\]"):
        options.parse(["-w", 3])  # type: ignore[list-item]


def test_every_option_in_nvrtcs_own_list_is_known() -> None:
    found = [Path(place) / "nvidia/cu13/include/nvrtc.h" for place in sys.path]
    header = next((path for path in found if path.is_file()), None)
    if header is None:
        pytest.skip("needs nvrtc.h: it comes with nvidia-cuda-nvrtc for CUDA 13")
    listed = re.findall(
        r"^ \*\s+- \\c (--?[\w+-]+)[=\\ <{]*.*?(?:\(\\c\s+(--?[\w+-]+))?", header.read_text(), re.MULTILINE
    )
    names = {name for pair in listed for name in pair if name}
    assert len(names) > 60
    # The list spells one of them in a way that NVRTC itself does not accept.
    assert names - set(options._SPELLINGS) <= {"--default-tile"}
    assert compiled(["--default-tile"]) is None


_CHOICES = st.lists(
    st.sampled_from(
        [
            *("-arch=sm_80", "-arch=sm_90", "--gpu-architecture=compute_90", "-fmad=false", "--fmad=true", "-ftz=true"),
            *(
                "-prec-div=false",
                "-prec-sqrt=false",
                "-use_fast_math",
                "-DX=q",
                "-DX=r",
                "-UX",
                "-DX",
                "-DY",
                "-G",
                "-dc",
            ),
            *(
                "-lineinfo",
                "-rdc=true",
                "-rdc=false",
                "-Iinc",
                "-Iother",
                "-std=c++14",
                "-std=c++20",
                "-default-device",
            ),
            *(
                "-restrict",
                "-dopt=on",
                "-Ofc=max",
                "-Ofc=0",
                "-maxrregcount=32",
                "-w",
                "-minimal",
                "-ewp",
                "-include=inc/a.h",
            ),
        ]
    ),
    max_size=5,
)


def test_generated_options_with_one_form_have_one_output(scale: int) -> None:
    outputs: dict[bytes, bytes | None] = {}

    @settings(max_examples=250 * scale, deadline=None, suppress_health_check=list(HealthCheck))
    @given(_CHOICES)
    def check(chosen: list[str]) -> None:
        read = options.parse(chosen)
        key = encode((read, closure(SOURCE, name="k.cu", memo_dir="", **read.search())))
        ptx = compiled(chosen)
        assert outputs.setdefault(key, ptx) == ptx

    check()
    assert len(set(outputs.values())) > 30
