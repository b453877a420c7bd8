"""What a compile shows of its surroundings, what cannot be bounded, and the headers of a toolkit.

Against the real NVRTC: a path in its output is in the key, one that is not there is not,
and what could give two outputs under one key is refused with the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from hotstart.errors import UncacheableError
from hotstart.keys import headers

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc: the test extra")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.keys.including import SEARCH, closure_of, compiled, lay, settle, value
else:
    from including import SEARCH, closure_of, compiled, lay, settle, value

pytestmark = pytest.mark.usefixtures("place")


# Paths and time in the output.


@pytest.mark.parametrize(
    "text",
    [
        "__device__ const char* f() { return __FILE__; }",
        "__device__ void f(int x) { assert(x); }",
        "#define WHERE __FILE__\n#define AT(x) (WHERE)\n__device__ const char* f() { return AT(1); }",
    ],
)
def test_a_path_in_the_output_is_in_the_key(place: Path, text: str) -> None:
    source = '#include <a.h>\nextern "C" __global__ void k(const char** p) { auto g = &f; *p = (const char*)g; }'
    lay(place, {"i1/a.h": text})
    shutil.copytree(place / "i1", place / "moved")
    here, there = (f"-I{place}/i1",), (f"-I{place}/moved",)
    assert compiled(source, here) != compiled(source, there)
    assert closure_of(source, here) != closure_of(source, there)
    # Spelled alike, it is alike.
    shutil.copytree(place / "i1", place / "far" / "i1")
    before = compiled(source, ("-I../i1",)), closure_of(source, ("-I../i1",))
    (place / "far" / "work").mkdir()
    os.chdir(place / "far" / "work")
    assert (compiled(source, ("-I../i1",)), closure_of(source, ("-I../i1",))) == before


def test_a_macro_of_one_header_shows_the_path_of_another(place: Path) -> None:
    lay(
        place,
        {"i1/say.h": "#define WHERE() __FILE__\n", "i2/use.h": "__device__ const char* f() { return WHERE(); }\n"},
    )
    shutil.copytree(place / "i2", place / "moved")
    source = '#include <say.h>\n#include <use.h>\nextern "C" __global__ void k(const char** p) { *p = f(); }'
    here, there = (f"-I{place}/i1", f"-I{place}/i2"), (f"-I{place}/i1", f"-I{place}/moved")
    assert compiled(source, here) != compiled(source, there)
    assert closure_of(source, here) != closure_of(source, there)


def test_without_assertions_a_moved_checkout_keeps_its_key(place: Path) -> None:
    lay(place, {"i1/a.h": '// assert("this")\n__device__ void f(int x) { assert(x); }'})
    shutil.copytree(place / "i1", place / "moved")
    source = '#include <a.h>\nextern "C" __global__ void k(int x) { f(x); }'
    here, there = ("-DNDEBUG", f"-I{place}/i1"), ("-DNDEBUG", f"-I{place}/moved")
    assert compiled(source, here) == compiled(source, there)
    assert closure_of(source, here) == closure_of(source, there)
    lay(place, {"i1/a.h": "#undef NDEBUG\n", "moved/a.h": "#undef NDEBUG\n"})
    kernel = '#include <a.h>\n#include <b.h>\nextern "C" __global__ void k(int x) { f(x); }'
    for directory in ("i1", "moved"):
        lay(place, {f"{directory}/b.h": "__device__ void f(int x) { assert(x); }"})
    # A file may take NDEBUG away again: then an assertion counts as one that shows its path.
    assert closure_of(kernel, here) != closure_of(kernel, there)


@pytest.mark.parametrize("flag", ["-lineinfo", "--generate-line-info", "-G", "--device-debug"])
def test_line_information_puts_every_path_into_the_key(place: Path, flag: str) -> None:
    lay(place, {"i1/a.h": "__device__ int f(int x) { return x * x; }\n"})
    shutil.copytree(place / "i1", place / "moved")
    source = '#include <a.h>\nextern "C" __global__ void k(int* p) { *p = f(*p); }'
    here, there = (flag, f"-I{place}/i1"), (flag, f"-I{place}/moved")
    assert compiled(source, here) != compiled(source, there)
    assert closure_of(source, here) != closure_of(source, there)
    before = compiled(source, here), closure_of(source, here)
    os.chdir(place)
    assert compiled(source, here) != before[0]
    assert closure_of(source, here) != before[1]


@pytest.mark.parametrize("clock", ["__DATE__", "__TIME__", "__TIMESTAMP__"])
def test_time_in_the_output_is_refused(place: Path, clock: str) -> None:
    lay(place, {"i1/a.h": f"#define STAMP {clock}\n"})
    for source in (f"__device__ char t[] = {clock};", "#include <a.h>\n__device__ char t[] = STAMP;"):
        with pytest.raises(UncacheableError, match="time of the compile"):
            closure_of(source, SEARCH)
    with pytest.raises(UncacheableError, match="time of the compile"):
        closure_of("__device__ char t[] = T;", (f"-DT={clock}",))
    # In a comment, in quotes or in a macro nobody uses it does nothing.
    closure_of(f'#include <a.h>\n// {clock}\n__device__ char t[] = "{clock}";', SEARCH)


# What cannot be bounded.


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("#define H(x) <x.h>\n#include H(__CUDA_ARCH__)", "__CUDA_ARCH__"),
        ("#define H(x) <x.h>\n#include H(__UNKNOWN_MACRO)", "__UNKNOWN_MACRO"),
        ("".join(f"#define N {n}\n" for n in range(70)) + "#define H(a, b) <a/b>\n#include H(N, N)", "readings"),
    ],
)
def test_an_include_without_bound_is_refused_with_the_reason(source: str, reason: str) -> None:
    with pytest.raises(UncacheableError, match=reason):
        closure_of(source, SEARCH)


def test_an_include_of_the_file_itself_is_no_riddle(place: Path) -> None:
    source = f"#ifndef A\n#define A\n#include __FILE__\n#else\n{value('self')}#endif"
    assert compiled(source) is not None
    closure_of(source)


def test_includes_that_lead_nowhere_are_no_reason_to_refuse(place: Path) -> None:
    source = f"#ifdef HOST\n#include <vector>\n#include <no/such.h>\n#endif\n{value('ok')}"
    ptx, before = compiled(source, SEARCH), closure_of(source, SEARCH)
    assert ptx is not None
    lay(place, {"i2/vector": value("now")})
    # Dead today; but a -D away from being read, so it counts.
    assert closure_of(source, SEARCH) != before


def test_a_directory_with_the_name_of_a_header_is_passed_by(place: Path) -> None:
    (place / "i1/a.h").mkdir()
    lay(place, {"i2/a.h": value("i2")})
    ptx, before = compiled("#include <a.h>", SEARCH), closure_of("#include <a.h>", SEARCH)
    (place / "i1/a.h").rmdir()
    lay(place, {"i1/a.h": value("i1")})
    assert compiled("#include <a.h>", SEARCH) != ptx
    assert closure_of("#include <a.h>", SEARCH) != before


def test_a_pipe_is_refused_and_not_read(place: Path) -> None:
    os.mkfifo(place / "i1/a.h")
    with pytest.raises(UncacheableError, match="neither a file"):
        closure_of("#include <a.h>", SEARCH)


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user other than root, who can read everything")
def test_a_header_that_cannot_be_read_is_named(place: Path) -> None:
    lay(place, {"i1/a.h": value("a")})
    (place / "i1/a.h").chmod(0)
    with pytest.raises(UncacheableError, match=r"a\.h cannot be read"):
        closure_of("#include <a.h>", SEARCH)


# Toolkit headers.


def record(include: Path) -> None:
    """Write down, as an installer of wheels does, that all these files came with NVIDIA's wheel."""
    site = include.parents[2]
    listed = [f"{path.relative_to(site)},sha256=0,1\n" for path in include.rglob("*") if path.is_file()]
    lay(site, {"nvidia_cuda_runtime-13.4.92.dist-info/RECORD": "".join(listed)})


@pytest.fixture
def toolkit(place: Path) -> Path:
    """A directory laid out as NVIDIA's wheels are."""
    root = place / "env/site-packages/nvidia/cu13/include"
    lay(root, {"tk.h": '#include "tk/inner.h"\n#include <user.h>\n', "tk/inner.h": value("inner")})
    record(root)
    return root


@pytest.mark.parametrize(
    "layout",
    [
        {"p/version.json": '{"version": "1.2.3"}', "p/include/x.h": value("old")},
        {"p/version.json": '{"cuda": {"version": "13.4"}}', "p/include/x.h": value("old")},
        {"p/version.json": "not even JSON", "p/include/cuda.h": "", "p/include/x.h": value("old")},
        {"p/version.json": "[]", "p/include/cuda.h": "", "p/include/x.h": value("old")},
        {"p/site-packages/nvidia/own/include/x.h": value("old")},
    ],
    ids=lambda layout: " ".join(layout.values())[:30],
)
def test_a_project_is_no_toolkit_for_looking_like_one(
    place: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, str]
) -> None:
    settle(monkeypatch)
    lay(place, layout)
    (header,) = [place / name for name in layout if name.endswith("x.h")]
    flags = (f"-I{header.parent}",)
    ptx, before = compiled("#include <x.h>", flags), closure_of("#include <x.h>", flags)
    header.write_text(value("new"))  # in place: the directory stays what it was
    assert compiled("#include <x.h>", flags) != ptx
    assert not before.unchanged()
    assert closure_of("#include <x.h>", flags) != before


def test_a_file_put_among_those_of_a_toolkit_is_the_users_own(
    place: Path, toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    lay(toolkit, {"mine.h": value("old")})
    lay(place, {"i1/user.h": ""})
    flags = (f"-I{toolkit}", "-I../i1")
    source = "#include <tk.h>\n#include <mine.h>"
    ptx, before = compiled(source, flags), closure_of(source, flags)
    assert "mine.h" in before.names and "tk.h" not in before.names
    (toolkit / "mine.h").write_text(value("new"))
    assert compiled(source, flags) != ptx
    assert closure_of(source, flags) != before


def test_an_installed_toolkit_is_one(place: Path) -> None:
    lay(
        place,
        {
            "cuda/version.json": '{"cuda": {"name": "CUDA SDK", "version": "13.4.0"}}',
            "cuda/targets/sbsa-linux/include/cuda.h": value("cuda"),
        },
    )
    assert closure_of("#include <cuda.h>", (f"-I{place}/cuda/targets/sbsa-linux/include",)).names == ()


def test_a_toolkit_elsewhere_with_the_same_content_is_the_same(place: Path, toolkit: Path) -> None:
    lay(place, {"i1/user.h": value("user")})
    other = place / "other/site-packages/nvidia/cu13/include"
    shutil.copytree(toolkit, other)
    record(other)
    source = "#include <tk.h>"
    assert closure_of(source, (f"-I{toolkit}", "-I../i1")) == closure_of(source, (f"-I{other}", "-I../i1"))
    lay(other, {"tk/inner.h": value("other_release")})
    headers.forget()
    assert closure_of(source, (f"-I{toolkit}", "-I../i1")) != closure_of(source, (f"-I{other}", "-I../i1"))


def test_what_the_user_puts_before_a_toolkit_is_noticed(
    place: Path, toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    flags = ("-I../i1", f"-I{toolkit}", "-I../i2")
    source = "#include <tk.h>"
    lay(place, {"i2/user.h": value("user")})
    ptx, before = compiled(source, flags), closure_of(source, flags)
    # A header that only a toolkit header includes, edited; then created earlier; then the toolkit's own, shadowed.
    for name in ("i2/user.h", "i1/user.h", "i1/tk.h"):
        lay(place, {name: value(re.sub(r"\W", "_", name))})
        after = compiled(source, flags), closure_of(source, flags)
        assert after[0] is not None and after[0] != ptx
        assert after[1] != before
        ptx, before = after


def test_another_release_of_a_toolkit_in_its_place_is_noticed(
    place: Path, toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    lay(place, {"i1/user.h": value("user")})
    flags = (f"-I{toolkit}", "-I../i1")
    before = closure_of("#include <tk.h>", flags)
    # As installers do: the file is replaced, not written over.
    lay(toolkit, {"tk/new": value("next_release")})
    (toolkit / "tk/new").rename(toolkit / "tk/inner.h")
    assert not before.unchanged()
    assert closure_of("#include <tk.h>", flags) != before


def test_real_toolkit_headers_are_followed(place: Path) -> None:
    include = toolkit_include("cuda_fp16.h", "nvidia-cuda-runtime")
    source = '#include <cuda_fp16.h>\nextern "C" __global__ void k(__half* p) { *p = __hadd(*p, *p); }'
    flags = ("-I../i1", f"-I{include}")
    ptx, before = compiled(source, flags), closure_of(source, flags)
    assert ptx is not None and before.names == ()
    # Included in angle brackets by a header of the toolkit: the user's own would be read instead.
    lay(place, {"i1/nv/target": "#error shadowed\n"})
    within = closure_of(source, flags)
    assert within != before
    lay(place, {"i1/cuda_fp16.h": "#error shadowed\n"})
    assert compiled(source, flags) is None
    assert closure_of(source, flags) not in (before, within)


def toolkit_include(header: str, package: str) -> Path:
    for entry in sys.path:
        include = Path(entry) / "nvidia/cu13/include"
        if (include / header).is_file():
            return include
    pytest.skip(f"needs {header}: pip install {package}")
