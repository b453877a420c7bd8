"""What macros name and ask for, against the real NVRTC: followed where NVRTC follows it, or refused, never dropped.

Each case is compiled before and after a change that NVRTC sees. Then the keys differ, or
the compile is uncacheable: a key that stays the same would serve the old output.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hotstart.errors import UncacheableError

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc: the test extra")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.keys.including import SEARCH, closure_of, compiled, lay, value
else:
    from including import SEARCH, closure_of, compiled, lay, value

pytestmark = pytest.mark.usefixtures("place")

#: Text that is not C++, in front of what is: a quote that nothing closes.
SKIPPED = "#if 0\nyou can't\n#endif\n"

ASKING = f"#if %s\n{value('yes')}#endif"

#: Source, options, headers on disk: x.h is in none of them. It is created, beside the source, when a case asks
#: for it, and edited when a case includes it.
QUESTIONS: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "through a macro that names the file": (
        '#define X "x.h"\n#define HAS_X __has_include(X)\n' + ASKING % "HAS_X",
        (),
        {},
    ),
    "through macros of another header": (
        '#include "cfg/c.h"\n' + ASKING % "HAS_X",
        ("-I.",),
        {"work/cfg/c.h": "#define X <x.h>\n#define HAS_X (defined(__CUDACC__) && __has_include(X))\n"},
    ),
    "beside the file that uses the macro": (
        '#include "a/h.h"\n' + ASKING % "Q",
        (),
        {"work/a/h.h": '#define Q __has_include("x.h")\n'},
    ),
    "beside the file that calls the macro": (
        '#include "a/h.h"\n' + ASKING % "Q()",
        (),
        {"work/a/h.h": '#define Q() __has_include("x.h")\n'},
    ),
    "in -D": (ASKING % "Q", ('-DQ=__has_include("x.h")',), {}),
    "in -D, in angle brackets": (ASKING % "Q", ("-DQ=__has_include(<x.h>)", "-I."), {}),
    "with its parenthesis in a macro": ('#define P ("x.h")\n' + ASKING % "__has_include P", (), {}),
    "under another name": ("#define HI __has_include\n" + ASKING % 'HI ("x.h")', (), {}),
    "under another name, its parenthesis in a macro": (
        '#define HI __has_include\n#define P ("x.h")\n' + ASKING % "HI P",
        (),
        {},
    ),
    "a macro handed to a macro": (
        "#define HI(x) __has_include(x)\n#define CALL(f, x) f(x)\n" + ASKING % 'CALL(HI, "x.h")',
        (),
        {},
    ),
    "pasted together": ("#define CAT(a, b) a##b\n" + ASKING % 'CAT(__has_inc, lude)("x.h")', (), {}),
    "pasted together of three": (
        "#define CAT(a, b, c) a##b##c\n" + ASKING % 'CAT(__has, _inc, lude)("x.h")',
        (),
        {},
    ),
    "a macro that asks, pasted together": (
        '#define CAT(a, b) a##b\n#define HAS_X __has_include("x.h")\n' + ASKING % "CAT(HAS_, X)",
        (),
        {},
    ),
    "with comments": (SKIPPED + "#define HI __has_include\n" + ASKING % 'HI/**/(/**/"x.h")', (), {}),
}

INCLUDES: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "comment in a definition": (SKIPPED + '#define H /* c */ "x.h"\n#include H', (), {}),
    "comment over lines in a definition": (SKIPPED + '#define H /* c\n c */ "x.h"\n#include H', (), {}),
    "comment between all words": (SKIPPED + '#define/**/H/**/"x.h"\n#include/**/H', (), {}),
    "comment before an argument": (SKIPPED + "#define S(x) #x\n#include S/**/(/*c*/x.h)", (), {}),
    "comment behind a definition": (SKIPPED + '#define H "x.h" // you can\'t\n#include H', (), {}),
    "digraphs that make a string": ("#define S(x) %:x\n#include S(x.h)", (), {}),
    "digraphs that paste": ("#define C(a, b) <a%:%:b.h>\n#include C(x,)", ("-I.",), {}),
    "nothing pasted to a string": ('#define C(a, b) a##b\n#include C(,"x.h")', (), {}),
    "trigraphs that make a string": ("#define S(x) ??=x\n#include S(x.h)", ("-std=c++14",), {}),
    "behind a raw string": ('__device__ const char r[] = R"(" /* )";\n#define H "x.h"\n#include H\n// */', (), {}),
    "in -D": ("#include H", ('-DH="x.h"',), {}),
    "in -D as a function": ("#include H(x)", ("-DH(a)=<a.h>", "-I."), {}),
    "variable arguments with spaces": ("#define V(...) <__VA_ARGS__>\n#include V(x.h)", ("-I.",), {}),
    "spliced": ('#def\\\nine H \\\n"x.\\\nh"\n#incl\\\nude H', (), {}),
    "a long chain of macros": (
        "".join(f"#define A{n} A{n + 1}\n" for n in range(1100)) + '#define A1100 "x.h"\n#include A0',
        (),
        {},
    ),
}


def keys_differ(place: Path, case: tuple[str, tuple[str, ...], dict[str, str]], states: tuple[str | None, str]) -> None:
    source, flags, files = case
    lay(place, files)
    seen: list[tuple[object, str]] = []
    for state in states:
        if state is not None:
            lay(place, {"work/x.h": state})
        try:
            key = closure_of(source, flags).digest
        except UncacheableError:
            key = f"none {len(seen)}"
        seen.append((compiled(source, flags), key))
    assert None not in (seen[0][0], seen[1][0]) and seen[0][0] != seen[1][0], "the case does not test anything"
    assert seen[0][1] != seen[1][1]


@pytest.mark.parametrize("case", QUESTIONS)
def test_a_question_that_nvrtc_answers_is_in_the_key(place: Path, case: str) -> None:
    keys_differ(place, QUESTIONS[case], (None, ""))


@pytest.mark.parametrize("case", INCLUDES)
def test_a_file_that_macros_name_is_in_the_key(place: Path, case: str) -> None:
    keys_differ(place, INCLUDES[case], (value("old"), value("new")))


@pytest.mark.parametrize("name", ["é.h", "日.h", "my x.h"])
@pytest.mark.parametrize("how", ['#include "{}"', '#define H "{}"\n#include H', "-D", "-include"])
def test_names_beyond_ascii_are_followed(place: Path, name: str, how: str) -> None:
    source, flags = (
        ("#include H", (f'-DH="{name}"',)) if how == "-D" else ("", ("-include", name)) if how == "-include"
        else (how.format(name), ())
    )  # fmt: skip
    seen = []
    for text in ("old", "new"):
        lay(place, {f"work/{name}": value(text)})
        seen.append((compiled(source, flags), closure_of(source, flags).digest))
    assert seen[0][0] is not None and seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]


@pytest.mark.parametrize(
    "source",
    [
        '#define HI __has_include\n#if HI ("x.h")\n#endif',
        '#define X "x.h"\n#define HAS_X (defined(__CUDACC__) && __has_include(X))\n#if HAS_X\n#endif',
        "#ifdef USER_CONFIG\n#include USER_CONFIG\n#endif",
        '#if defined(__has_include)\n#if __has_include("x.h")\n#endif\n#endif\n#error "needs __has_include"',
        "#define S(x) %:x\n#include S(x.h)\n// isn't\n__device__ int d = 1'000; /* \" */",
    ],
)
def test_what_is_usual_stays_cacheable(place: Path, source: str) -> None:
    lay(place, {"work/x.h": ""})
    closure_of(source, SEARCH)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("#define H 5\n#include H", "names no file"),
        ("#define H\n#include H", "never become"),
        ('#define P ("x.h")\n#if __has_include P\n#endif', "without a parenthesis"),
        ('#if __has_include("x.h"\n#endif', "not closed"),
        ("#include H\\u00c9", "in it"),
        ("#define CAT(a, b) a##b\nint x = CAT(__has_, include)(<a.h>);", "pasted together"),
    ],
)
def test_what_is_not_followed_is_refused_with_the_reason(source: str, reason: str) -> None:
    with pytest.raises(UncacheableError, match=reason):
        closure_of(source, SEARCH)


@pytest.mark.parametrize("clock", ["CAT(__TI, ME__)", "CAT(CAT(__, TIME), __)", "CAT(__DA, TE__)", "CAT(N, OW)"])
@pytest.mark.parametrize("paste", ["##", "%:%:"])
def test_time_that_is_pasted_together_is_refused(clock: str, paste: str) -> None:
    macros = f"#define CAT_(a, b) a{paste}b\n#define CAT(a, b) CAT_(a, b)\n#define NOW __TIME__\n"
    source = f'{macros}extern "C" __device__ const char s[] = {clock};'
    assert compiled(source) is not None
    with pytest.raises(UncacheableError, match="time of the compile"):
        closure_of(source)


def test_a_path_that_is_pasted_together_is_in_the_key() -> None:
    source = '#define CAT(a, b) a##b\nextern "C" __device__ const char s[] = CAT(__FI, LE__);'
    names = ("/aaa/k.cu", "/bbb/k.cu")
    assert compiled(source, name=names[0]) != compiled(source, name=names[1])
    assert closure_of(source, name=names[0]) != closure_of(source, name=names[1])


@pytest.mark.usefixtures("hang_guard")
@pytest.mark.parametrize(
    "text",
    [
        "/*a" * 200_000,
        "__has_include((" * 20_000,
        "__has_include(" * 20_000 + ")" * 20_000,
        "'" + "#/*" * 100_000,
        "1'" * 100_000,
        'R"(' * 100_000,
        "#define X A0\n" + "".join(f"#define A{n} A{n + 1}\n" for n in range(20_000)) + "#include X\n",
        "#define F(x) x\n#include " + "F(" * 3000 + "a" + ")" * 3000,
        "".join(f"#define M{n} M{n + 1} M{n + 1}\n" for n in range(40)) + "#include M0\n",
        "".join(f"#define M{n}(x) M{n + 1}(x x)\n" for n in range(40)) + "#include M0(a b c)\n",
        "".join(f"#define H{n} __has_include(H{n + 1})\n" for n in range(3000)) + "#if H0\n#endif\n",
    ],
    ids=lambda text: text[:24],
)
def test_the_work_a_hostile_source_makes_is_bounded(text: str) -> None:
    """Each of these took from seconds to hours, or ended in a RecursionError."""
    try:
        closure_of('#include "q.h"\n' + text)
    except UncacheableError:
        pass  # said with the reason, which is as good
