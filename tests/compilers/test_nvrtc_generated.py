"""Two programs that compile to different PTX never share a key: generated worlds, changed in one thing, real NVRTC.

A world is a source, headers on disk and in memory, options, an architecture and name
expressions. Its directives include, define and ask through macros, with comments, splices
and digraphs between their words. Each world is compiled, changed, and compiled again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hotstart.compilers import nvrtc
from hotstart.errors import CompileError, UncacheableError
from hotstart.keys import headers, memo

pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc")

#: What can stand between two words of a directive, and what cannot be told from it where nothing need stand.
_GAPS = st.sampled_from([" ", " ", " ", "\t", "/**/", " /* a */ ", "/* a\n b */", "\\\n ", " \\\n", "/* you can't */"])
_HASHES = st.sampled_from(["#", "#", "#", "# ", "%:", " #", "/**/#", "#\\\n"])
_NAMES = st.sampled_from(["x.h", "x.h", "x.h", "é.h", "sub/x.h"])
_PLACES = ("work", "p/include", "i2", "work/sub")

#: Text around which the compiler has to find its way.
_NOISE = st.sampled_from(
    [
        "",
        "",
        "#if 0\nyou can't\n#endif\n",
        "#ifdef NEVER\n#error you can't\n#endif\n",
        '#if 0\n"not closed /*\n#endif\n',
        '__device__ const char r[] = R"x(" /* )x";\n',
        "__device__ int d = 1'000; // '\n",
        "__device__ char c = '\"'; /* ' */\n",
        "// spliced \\\n#error not here\n",
        "#define CAT(a, b) a##b\n",
    ]
)


@st.composite
def directives(draw: st.DrawFn, *words: str) -> str:
    """A directive of these words, with something or other between them."""
    text = draw(_HASHES)
    for word in words:
        text += word + draw(_GAPS)
    return text + draw(st.sampled_from(["", "", " // c", " /* c */"])) + "\n"


@st.composite
def spelled(draw: st.DrawFn) -> str:
    name = draw(_NAMES)
    return draw(st.sampled_from([f'"{name}"', f"<{name}>"]))


@st.composite
def including(draw: st.DrawFn) -> tuple[str, str, list[str]]:
    """Lines that define, lines that include through what they define, options."""
    name = draw(spelled())
    macro = draw(st.sampled_from(["H", "G"]))
    way = draw(st.integers(0, 6))
    if way <= 1:
        return "", draw(directives("include", name)), []
    if way == 2:
        return draw(directives("define", macro, name)), draw(directives("include", macro)), []
    if way == 3:
        return "", draw(directives("include", macro)), [f"-D{macro}={name}"]
    if way == 4:
        sign = draw(st.sampled_from(["#", "%:"]))
        return draw(directives("define", f"S(a) {sign}a")), draw(directives("include", "S", f"({name[1:-1]})")), []
    if way == 5:
        sign = draw(st.sampled_from(["##", " %:%: "]))
        return draw(directives("define", f"C(a, b) <a{sign}b.h>")), draw(directives("include", "C", "(x,", ")")), []
    chain = draw(directives("define", macro, "J")) + draw(directives("define", "J", name))
    return chain, draw(directives("include", macro)), []


@st.composite
def asking(draw: st.DrawFn) -> tuple[str, str, list[str]]:
    """The same for questions."""
    name = draw(spelled())
    way = draw(st.integers(0, 8))
    define: str = ""
    options: list[str] = []
    asked = f"__has_include({name})"
    if way == 1:
        define, asked = draw(directives("define", "Q", asked)), "Q"
    elif way == 2:
        define = draw(directives("define", "FILE", name)) + draw(directives("define", "Q", "__has_include", "(FILE)"))
        asked = "Q"
    elif way == 3:
        options, asked = [f"-DQ={asked}"], "Q"
    elif way == 4:
        define, asked = draw(directives("define", "A", "__has_include")), f"A({name})"
    elif way == 5:
        define, asked = draw(directives("define", "A(a) __has_include(a)")), f"A({draw(_GAPS)}{name})"
    elif way == 6:
        define, asked = draw(directives("define", "P", f"({name})")), "__has_include P"
    elif way == 7:
        define, asked = "#define CAT(a, b) a##b\n", f"CAT(__has_inc, lude)({name})"
    elif way == 8:
        define, asked = draw(directives("define", "FILE", name)), "__has_include(FILE)"
    line = draw(directives("if", asked)) + "#undef W\n#define W 77\n" + draw(directives("endif"))
    return define, line, options


_TEXTS = st.one_of(
    st.integers(1, 4).map(lambda number: f"#undef V\n#define V {number}\n"),
    st.integers(1, 4).map(lambda number: f"#undef W\n#define W {number}\n"),
    st.just(""),
)


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    parts = draw(st.lists(st.one_of(including(), asking()), min_size=1, max_size=2))
    defined = "".join(part[0] for part in parts)
    # Most of the time every name is found somewhere, so that most worlds compile.
    files = {} if draw(st.integers(0, 5)) == 5 else {f"i2/{name}": "" for name in ("x.h", "é.h", "sub/x.h")}
    for place, name, text in draw(st.lists(st.tuples(st.sampled_from(_PLACES), _NAMES, _TEXTS), max_size=4)):
        files[f"{place}/{name}"] = text
    source = draw(_NOISE)
    if draw(st.booleans()):
        # What defines and what uses stand in files of their own, in directories of their own.
        files["i2/def/defs.h"] = defined
        source += "#include <def/defs.h>\n"
    else:
        source += defined
    source += "".join(part[1] for part in parts)
    source += "#ifndef V\n#define V 0\n#endif\n#ifndef W\n#define W 0\n#endif\n"
    source += "template <class T> __global__ void t(T* a) { *a = V; }\n"
    source += 'extern "C" __global__ void k(int* a) { a[0] = V; a[1] = W; a[2] = N; }\n'
    source += draw(st.sampled_from(["", "", 'extern "C" __device__ const char f[] = __FILE__;\n']))
    return {
        "files": files,
        "source": source,
        "options": [*draw(st.permutations(["-I../p/include", "-I../i2"])), "-DN=1", *[o for p in parts for o in p[2]]],
        "memory": draw(st.dictionaries(_NAMES, _TEXTS, max_size=1)),
        "arch": "compute_90",
        "expressions": draw(st.sampled_from([(), ("t<int>",)])),
        "name": draw(st.sampled_from(["k.cu", "k.cu", "./k.cu"])),
    }


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, Any]:
    """One thing that is different the second time."""
    what = draw(
        st.sampled_from(["file"] * 9 + ["remove"] * 2 + ["order", "define", "memory", "arch", "expressions", "name"])
    )
    if what in ("file", "memory"):
        return what, (draw(st.sampled_from(_PLACES)), draw(_NAMES), draw(_TEXTS))
    return what, (draw(st.sampled_from(_PLACES)), draw(_NAMES))


def changed(world: dict[str, Any], change: tuple[str, Any]) -> dict[str, Any]:
    what, how = change
    world = {**world, "files": dict(world["files"]), "options": list(world["options"])}
    if what == "file":
        world["files"][f"{how[0]}/{how[1]}"] = how[2]
    elif what == "remove":
        world["files"].pop(f"{how[0]}/{how[1]}", None)
    elif what == "memory":
        world["memory"] = {how[1]: how[2]}
    elif what == "order":
        world["options"][:2] = world["options"][1::-1]
    elif what == "define":
        world["options"][2] = "-DN=2"
    elif what == "arch":
        world["arch"] = "compute_80"
    elif what == "expressions":
        world["expressions"] = ("t<float>",)
    else:
        world["name"] = "../work/k.cu"
    return world


def lay(root: Path, files: dict[str, str]) -> None:
    """Make the tree what ``files`` says, writing over what is there as editors do."""
    for path in root.rglob("*.h"):
        if str(path.relative_to(root)) not in files:
            path.unlink()
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def looked_at(world: dict[str, Any]) -> tuple[str, bytes | None]:
    """The key, "" where there is none, and the PTX, None where it does not compile."""
    given = [f"--gpu-architecture={world['arch']}", "-default-device", *world["options"]]
    request = (world["memory"] or None, world["expressions"], world["name"], ("ptx",))
    text = world["source"].encode()
    try:
        key = nvrtc._key(text, world["arch"], given, *request)[0].digest
    except UncacheableError:
        key = ""
    try:
        return key, bytes(nvrtc._compile(text, given, *request).artifacts["ptx"])
    except CompileError:
        return key, None


def test_two_programs_with_different_ptx_never_share_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: int
) -> None:
    monkeypatch.setattr(memo, "SETTLING_NS", -1)  # files are known by their times at once, as old ones are
    meant: dict[str, bytes | None] = {}
    count = {"examples": 0, "keyed": 0, "changed": 0, "kept": 0, "failed": 0}
    here = Path.cwd()

    # Worlds are small as they are drawn; making a failing one smaller would compile for minutes.
    phases = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]

    @settings(max_examples=320 * scale, deadline=None, suppress_health_check=list(HealthCheck), phases=phases)
    @given(world=worlds(), change=changes())
    def check(world: dict[str, Any], change: tuple[str, Any]) -> None:
        count["examples"] += 1
        root = tmp_path / f"w{count['examples']}"
        for place in _PLACES:
            (root / place).mkdir(parents=True)
        # What looks like a toolkit from afar, and is a project.
        (root / "p/version.json").write_text('{"version": "1.0"}')
        os.chdir(root / "work")
        seen = []
        for now in (world, changed(world, change)):
            lay(root, now["files"])
            seen.append(looked_at(now))
            key, ptx = seen[-1]
            if key:
                assert meant.setdefault(key, ptx) == ptx, "one key, two outputs"
        count["keyed"] += bool(seen[0][0])
        count["failed"] += seen[0][1] is None
        count["changed" if seen[0][1] != seen[1][1] else "kept"] += 1

    headers.forget()
    try:
        check()
    finally:
        os.chdir(here)
    # Were all of them refused, broken or without effect, this would prove nothing.
    assert count["keyed"] > count["examples"] / 2 and count["changed"] > 30 and count["kept"] > 30, count
    assert count["failed"] < count["examples"] / 2, count
