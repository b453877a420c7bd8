"""The scanner never misses a directive that the real NVRTC follows, whatever stands around it.

Finding one too many costs a recompile some day; missing one serves stale code.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hotstart.keys.headers import lexer, preprocess, scanner

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc: the test extra")


def scanned(text: str) -> scanner.Scan:
    return scanner.scan(lexer.readings(text.encode()), "")


def followed(text: str, *flags: str) -> bool:
    """Whether NVRTC includes <a.h>, which exists only in memory and says so in an error."""
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"k.cu", 1, [b"#error FOLLOWED\n"], [b"a.h"])
    options = [b"-arch=compute_90", *[flag.encode() for flag in flags]]
    nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytes(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    return b"FOLLOWED" in log


#: Pieces of which most texts are wrong C++ and some are traps.
_PIECES = st.sampled_from(
    [
        *(
            '"',
            "'",
            "/*",
            "*/",
            "//",
            "\\",
            "\n",
            "\\\n",
            "\r\n",
            "\r",
            " ",
            "\t",
            "R",
            "(",
            ")",
            ')"',
            '"(',
            "u8",
            "L",
        ),
        *(
            "#if 0\n",
            "#else\n",
            "#endif\n",
            "#error ",
            "#define X ",
            "don't",
            "1'000",
            "0x1'f",
            "x",
            "x1'",
            "??/",
            "??=",
            "??'",
        ),
        *('R"(', 'R"z(', ')z"', 'u8R"(', '"a"', "'a'", "'\\''", '"\\""', "<", ">", "%:", "#", "\\\\", "int i;\n"),
    ]
)
_INCLUDES = st.sampled_from(
    [
        *(
            "#include <a.h>\n",
            '#include "a.h"\n',
            "%:include<a.h>\n",
            " # include /* c */ <a.h> // t\n",
            "#inc\\\nlude <a.h>\n",
        ),
        *("??=include <a.h>\n", "#include <a.h>", "/**/#include <a.h>\n", "#include H\n", "\f#\vinclude\t<a.h>\n"),
    ]
)
_STANDARDS = st.sampled_from(["-std=c++03", "-std=c++14", "-std=c++17", "-std=c++20"])


def test_no_directive_that_nvrtc_follows_is_missed(scale: int) -> None:
    count = {"followed": 0, "one reading": 0, "several": 0}

    @settings(max_examples=400 * scale, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(_PIECES, max_size=7), _INCLUDES, st.lists(_PIECES, max_size=4), _STANDARDS)
    @example(["#if 0\n", "don't", "/*", "\n", "#endif\n"], "#include <a.h>\n", ["//", "*/"], "-std=c++17")
    @example(['R"(', '"', "/*", ')"', "\n"], "#include <a.h>\n", ["//", "*/"], "-std=c++17")
    @example(["R", '"(', '"', "\n"], "#include <a.h>\n", ["//", ')"'], "-std=c++03")
    @example(["//", "x", "??/", "\n"], "#include <a.h>\n", [], "-std=c++17")
    @example(['"', "??/", '"', '"', "\n"], "#include <a.h>\n", [], "-std=c++14")
    @example(["x1'", "/*", "'", "\n"], "#include <a.h>\n", ["//", "*/"], "-std=c++17")
    @example(["//", "x", "\r"], "#include <a.h>\n", [], "-std=c++17")
    def check(before: list[str], include: str, after: list[str], standard: str) -> None:
        text = "#define H <a.h>\n" + "".join(before) + include + "".join(after)
        if not followed(text, standard):
            return
        count["followed"] += 1
        found = scanned(text)
        count["one reading" if len(lexer.readings(text.encode())) == 1 else "several"] += 1
        names = {name for _, name in found.includes} | {operand[:1] for _, operand in found.computed}
        assert "a.h" in names or "H" in names, text

    check()
    assert count["one reading"] and count["several"], count


@pytest.mark.parametrize(
    ("text", "includes"),
    [
        ("// #include <a.h>\n", ()),
        ("/* #include <a.h> */ int x;\n", ()),
        ('#include "a.h" // "b.h"\n#include <b.h>\n', (('"', "a.h"), ("<", "b.h"))),
        ("#include <s//a.h>\n", (("<", "s//a.h"),)),
        ("#include_next <a.h>\n", (("+<", "a.h"),)),
        ('#if __has_include(<a.h>) && __has_include("b.h")\n', (("<", "a.h"), ('"', "b.h"))),
        ("#if __has_include_next(<a.h>)\n", (("+<", "a.h"),)),
        ('#embed "a.bin"\n', (('"', "a.bin"),)),
        ("import <a.h>;\n", (("<", "a.h"),)),
    ],
)
def test_what_is_found(text: str, includes: tuple[tuple[str, str], ...]) -> None:
    assert scanned(text).includes == includes


def test_computed_includes_and_definitions() -> None:
    found = scanned(
        "#define H(x) <x/y.h> // c\n#define E\n#include H(a) \n#if __has_include(H(b)) && X\n#include_next G\n"
    )
    assert found.definitions == (("H", ("x",), "<x/y.h>"), ("E", None, ""))
    assert found.computed == (("", "H(a)"), ("+", "G"), ("", "H(b)"))


def test_words_count_only_where_macros_are_expanded() -> None:
    for text in ('char s[] = "__TIME__";', "// __TIME__", "/* __TIME__ */", "#define A __TIME__", "#error __TIME__"):
        assert "__TIME__" not in scanned(text).words, text
    assert "__TIME__" in scanned("#error don't\nf(__TIME__); // '").words
    assert scanned("static_assert(1);").words == {"static_assert", "1"}


def expanded(text: str, *defined: str) -> set[str]:
    macros: dict[str, list[tuple[str, tuple[str, ...] | None, str]]] = {}
    for line in defined:
        for made in scanned(f"#define {line}\n").definitions:
            macros.setdefault(made[0], []).append(made)
    return preprocess.expansions(text, macros, preprocess.Budget())


def test_every_definition_is_tried() -> None:
    assert expanded("H", "H <a.h>", 'H "b.h"') == {"H", "<a.h>", '"b.h"'}
    assert '"sub/x.h"' in expanded("S(D/x.h)", "S_(x) #x", "S(x) S_(x)", "D sub")
    assert "<linux.h>" in expanded("C(li, nux)", "C(a, b) <a ## b.h>")
    assert "<a.h>" in expanded("V(a.h)", "V(...) <__VA_ARGS__>")
    assert "<a,b>" in expanded("V(a,b)", "V(x...) <x>")
    assert "<a.h>" in expanded("F (a)", "F(x) G(x)", "G(y) <y.h>")
    assert expanded("A", "A B", "B A") == {"A", "B"}
    assert expanded("F(1, 2)", "F(x) <x>") == {"F(1, 2)"}


def test_what_the_compiler_defines_has_no_bound() -> None:
    for text in ("__CUDA_ARCH__", "__cplusplus", "F(__LINE__)", "__NOT_HERE", "_Reserved"):
        with pytest.raises(preprocess.Unbounded):
            expanded(text, "F(x) <x>")
    with pytest.raises(preprocess.Unbounded, match="readings"):
        expanded("F(N, N)", "F(a, b) <a/b>", *[f"N {n}" for n in range(70)])


@pytest.mark.usefixtures("hang_guard")
def test_no_text_makes_the_patterns_explode() -> None:
    """Spaces, stars and quotes without end: a pattern that can split them in two ways would try every way."""
    for piece in ("# ", "include <", '"', "1'", " \t", "#define ", "#include /**/", "__has_include <", "%:"):
        found = scanned(piece * 30_000 + "\n#include <a.h>\n")
        assert ("<", "a.h") in found.includes, piece
    for piece in ('"\\\\', "#/*", "/* *", 'R"(', "/*/", "__has_include("):
        scanned(piece * 30_000 + "\n#include <a.h>\n")
