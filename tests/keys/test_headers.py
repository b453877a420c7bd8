"""The closure of headers against the real NVRTC: whenever the output changes, the key does.

Each staged change is compiled before and after. A change that NVRTC answers with
other PTX must give another key; a change that cannot matter must keep it, or every
moved checkout would compile again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotstart.errors import UncacheableError
from hotstart.keys.digest import encode

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc: the test extra")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.keys.including import SEARCH, closure_of, compiled, lay, settle, value
else:
    from including import SEARCH, closure_of, compiled, lay, settle, value

pytestmark = pytest.mark.usefixtures("place")


#: Before, the change (None deletes), the source, options, headers in memory: NVRTC sees every one of these changes.
STAGED: dict[str, tuple[dict[str, str], dict[str, str | None], str, tuple[str, ...], dict[str, str]]] = {
    "header edited": ({"i1/a.h": value("old")}, {"i1/a.h": value("new")}, "#include <a.h>", (), {}),
    "quoted header beside the source edited": (
        {"work/a.h": value("old")},
        {"work/a.h": value("new")},
        '#include "a.h"',
        (),
        {},
    ),
    "nested header edited": (
        {"i1/a.h": '#include "sub/b.h"\n', "i1/sub/b.h": '#include "c.h"\n', "i1/sub/c.h": value("old")},
        {"i1/sub/c.h": value("new")},
        "#include <a.h>",
        (),
        {},
    ),
    "header created in an earlier directory": (
        {"i2/a.h": value("late")},
        {"i1/a.h": value("early")},
        "#include <a.h>",
        (),
        {},
    ),
    "header created beside the source": ({"i1/a.h": value("i1")}, {"work/a.h": value("cwd")}, '#include "a.h"', (), {}),
    "header created beside its includer": (
        {"i2/a.h": '#include "b.h"\n', "i1/b.h": value("i1")},
        {"i2/b.h": value("i2")},
        "#include <a.h>",
        (),
        {},
    ),
    "header deleted, another takes its place": (
        {"i1/a.h": value("i1"), "i2/a.h": value("i2")},
        {"i1/a.h": None},
        "#include <a.h>",
        (),
        {},
    ),
    "header with the forgotten suffix created": (
        {"i2/std": value("plain")},
        {"i1/std.stdh": value("suffix")},
        "#include <std>",
        (),
        {},
    ),
    "whole directory created": (
        {"i2/sub/a.h": value("i2")},
        {"i1/sub/a.h": value("i1")},
        "#include <sub/a.h>",
        (),
        {},
    ),
    "macro that names the file changed": (
        {"i1/which.h": "#define H <a.h>\n", "i1/a.h": value("a"), "i1/b.h": value("b")},
        {"i1/which.h": "#define H <b.h>\n"},
        "#include <which.h>\n#include H",
        (),
        {},
    ),
    "file named by a macro edited": (
        {"i1/a.h": value("old")},
        {"i1/a.h": value("new")},
        "#define H <a.h>\n#include H",
        (),
        {},
    ),
    "file named by a function-like macro edited": (
        {"i1/cuda/std/x": value("old")},
        {"i1/cuda/std/x": value("new")},
        "#define STD_HEADER(x) <cuda/std/x>\n#include STD_HEADER(x)",
        (),
        {},
    ),
    "file named by a string of a macro edited": (
        {"i1/sub/x.h": value("old")},
        {"i1/sub/x.h": value("new")},
        "#define S_(x) #x\n#define S(x) S_(x)\n#define DIR sub\n#include S(DIR/x.h)",
        (),
        {},
    ),
    "file named by -D edited": (
        {"i1/a.h": value("old")},
        {"i1/a.h": value("new")},
        "#include H",
        ("-DH=<a.h>",),
        {},
    ),
    "what a question asks for created": (
        {},
        {"i1/a.h": ""},
        f"#if __has_include(<a.h>)\n{value('yes')}#endif",
        (),
        {},
    ),
    "what a macro asks for created": (
        {"i1/ask.h": "#define ASK(_X) __has_include(_X)\n#define AGAIN(x) ASK(x)\n"},
        {"i1/a.h": ""},
        f"#include <ask.h>\n#if AGAIN(<a.h>)\n{value('yes')}#endif",
        (),
        {},
    ),
    "what a macro asks for in another's definition created": (
        {"i1/ask.h": "#define ASK(_X) __has_include(_X)\n#define THERE ASK(<a.h>)\n"},
        {"i1/a.h": ""},
        f"#include <ask.h>\n#if THERE\n{value('yes')}#endif",
        (),
        {},
    ),
    "what another name of the question asks for created": (
        {},
        {"work/a.h": ""},
        f'#define ASK __has_include\n#if ASK("a.h")\n{value("yes")}#endif',
        (),
        {},
    ),
    "next header edited": (
        {"i1/a.h": "#include_next <a.h>\n", "i2/a.h": value("old")},
        {"i2/a.h": value("new")},
        "#include <a.h>",
        (),
        {},
    ),
    "header of a header in memory edited": (
        {"work/sub/b.h": value("old")},
        {"work/sub/b.h": value("new")},
        '#include "sub/m.h"',
        (),
        {"sub/m.h": '#include "b.h"'},
    ),
    "-include edited": ({"work/p.h": value("old")}, {"work/p.h": value("new")}, "", ("-include=p.h",), {}),
    "-include created earlier": ({"i1/p.h": value("i1")}, {"work/p.h": value("cwd")}, "", ("-include", "p.h"), {}),
    "after a comment": ({"i1/a.h": value("o")}, {"i1/a.h": value("n")}, "/* x\n*/ # /**/ include /**/ <a.h>", (), {}),
    "over joined lines": ({"i1/a.h": value("o")}, {"i1/a.h": value("n")}, "#inc\\\nlude <a\\\n.h>", (), {}),
    "as a digraph": ({"i1/a.h": value("o")}, {"i1/a.h": value("n")}, "%:include <a.h>", (), {}),
    "as a trigraph": ({"i1/a.h": value("o")}, {"i1/a.h": value("n")}, "??=include <a.h>", ("-std=c++14",), {}),
    "with slashes in the name": ({"i1/s/a.h": value("o")}, {"i1/s/a.h": value("n")}, "#include <s//a.h>", (), {}),
    "behind an apostrophe in skipped text": (
        {"i1/a.h": value("o")},
        {"i1/a.h": value("n")},
        "#if 0\ndon't /* x\n#endif\n#include <a.h>\n// */",
        (),
        {},
    ),
    "behind a raw string": (
        {"i1/a.h": value("o")},
        {"i1/a.h": value("n")},
        '__device__ const char r[] = R"(" /* )";\n#include <a.h>\n// */',
        (),
        {},
    ),
    "behind grouped digits": (
        {"i1/a.h": value("o")},
        {"i1/a.h": value("n")},
        "__device__ int d = 1'000;\n#include <a.h>\n// '",
        (),
        {},
    ),
}


@pytest.mark.parametrize("case", STAGED)
def test_a_change_that_nvrtc_sees_changes_the_key(place: Path, case: str) -> None:
    before, change, source, extra, memory = STAGED[case]
    flags = (*SEARCH, *extra)
    lay(place, before)
    old_ptx, old = compiled(source, flags, memory=memory), closure_of(source, flags, memory=memory)
    lay(place, change)
    new_ptx, new = compiled(source, flags, memory=memory), closure_of(source, flags, memory=memory)
    assert old_ptx is not None and new_ptx is not None and old_ptx != new_ptx, "the case does not test anything"
    assert old != new
    assert encode(old) != encode(new)


@pytest.mark.parametrize("case", STAGED)
def test_an_older_closure_says_that_it_has_changed(place: Path, case: str) -> None:
    before, change, source, extra, memory = STAGED[case]
    flags = (*SEARCH, *extra)
    lay(place, before)
    found = closure_of(source, flags, memory=memory)
    assert found.unchanged()
    lay(place, change)
    assert not found.unchanged()


@pytest.mark.parametrize("case", STAGED)
def test_a_moved_checkout_keeps_its_keys(place: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, _, source, extra, memory = STAGED[case]
    lay(place, before)
    moved = place / "elsewhere" / "deeper"
    for directory in ("work", "i1", "i2"):
        shutil.copytree(place / directory, moved / directory)
    keys = []
    for root in (place, moved):
        monkeypatch.chdir(root / "work")
        keys.append(closure_of(source, (f"-I{root}/i1", f"-I{root}/i2", *extra), memory=memory))
        keys.append(closure_of(source, (*SEARCH, *extra), memory=memory))
    assert len({key.digest for key in keys}) == 1


def test_what_is_not_read_does_not_count(place: Path) -> None:
    lay(place, {"i1/a.h": value("a"), "i2/a.h": "hidden", "i1/b.h": "unused"})
    before = closure_of("#include <a.h>", SEARCH)
    lay(place, {"i2/a.h": "changed", "i1/b.h": "changed", "work/a.h": "not for angle brackets"})
    os.utime(place / "i1/a.h")
    assert closure_of("#include <a.h>", SEARCH) == before
    assert closure_of("#include <a.h>", SEARCH, memory={"unused.h": "text"}) == before


def test_headers_in_memory_come_first_and_by_exact_name(place: Path) -> None:
    lay(place, {"i1/m.h": value("disk"), "work/m.h": value("cwd")})
    memory = {"m.h": value("memory")}
    for source in ('#include "m.h"', "#include <m.h>"):
        ptx = compiled(source, SEARCH, memory=memory)
        before = closure_of(source, SEARCH, memory=memory)
        lay(place, {"i1/m.h": value("edited"), "work/m.h": value("edited")})
        assert compiled(source, SEARCH, memory=memory) == ptx
        assert closure_of(source, SEARCH, memory=memory) == before
        assert closure_of(source, SEARCH, memory={"m.h": value("other")}) != before
    # "./m.h" is another name: that is the file.
    assert compiled('#include "./m.h"', SEARCH, memory=memory) != compiled('#include "m.h"', SEARCH, memory=memory)
    before = closure_of('#include "./m.h"', SEARCH, memory=memory)
    lay(place, {"work/m.h": value("again")})
    assert closure_of('#include "./m.h"', SEARCH, memory=memory) != before


def test_the_name_of_the_source_decides_where_quotes_look(place: Path) -> None:
    lay(place, {"src/a.h": value("src"), "work/a.h": value("cwd")})
    source = '#include "a.h"'
    for turn, (name, edited, unseen) in enumerate(
        (
            ("../src/k.cu", "src/a.h", "work/a.h"),
            (f"{place}/src/k.cu", "src/a.h", "work/a.h"),
            ("k.cu", "work/a.h", "src/a.h"),
        )
    ):
        ptx, before = compiled(source, name=name), closure_of(source, name=name)
        lay(place, {unseen: value(f"unseen_{turn}")})
        assert (compiled(source, name=name), closure_of(source, name=name)) == (ptx, before)
        lay(place, {edited: value(f"edited_{turn}")})
        assert compiled(source, name=name) != ptx
        assert closure_of(source, name=name) != before


def test_no_source_include_is_followed(place: Path) -> None:
    lay(place, {"work/a.h": value("cwd"), "i1/a.h": value("i1")})
    flags = (*SEARCH, "-no-source-include")
    ptx, before = compiled('#include "a.h"', flags), closure_of('#include "a.h"', flags)
    lay(place, {"work/a.h": value("edited")})
    assert (compiled('#include "a.h"', flags), closure_of('#include "a.h"', flags)) == (ptx, before)
    lay(place, {"i1/a.h": value("edited")})
    assert compiled('#include "a.h"', flags) != ptx
    assert closure_of('#include "a.h"', flags) != before


def test_an_absolute_include_is_followed(place: Path) -> None:
    lay(place, {"far/a.h": value("old")})
    source = f'#include "{place}/far/a.h"'
    ptx, before = compiled(source), closure_of(source)
    lay(place, {"far/a.h": value("new")})
    assert compiled(source) != ptx
    assert closure_of(source) != before


def test_the_order_of_directories_counts(place: Path) -> None:
    lay(place, {"i1/a.h": value("i1"), "i2/a.h": value("i2")})
    assert compiled("#include <a.h>", SEARCH) != compiled("#include <a.h>", SEARCH[::-1])
    assert closure_of("#include <a.h>", SEARCH) != closure_of("#include <a.h>", SEARCH[::-1])


def test_headers_before_the_source_count_in_their_order_and_as_often_as_named(place: Path) -> None:
    lay(place, {"work/a.h": "#undef W\n#define W 1\n", "work/b.h": "#undef W\n#define W 2\n"})
    source = "#ifndef W\n#define W 0\n#endif\n__device__ int v = W;"
    orders = [(), ("-include=a.h", "-include=b.h"), ("-include=b.h", "-include=a.h"), ("-include=a.h",)]
    assert len({compiled(source, order) for order in orders}) == 3
    repeated = [*orders, ("-include=a.h", "-include=a.h")]
    assert len({closure_of(source, order).digest for order in repeated}) == 5


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_pragma_once_knows_files_by_inode(place: Path, link: Callable[[Path, Path], None]) -> None:
    text = "#pragma once\n#ifdef SEEN\n" + value("twice") + "#endif\n#define SEEN\n"
    lay(place, {"i1/a.h": text, "i1/b.h": text})
    source = "#include <a.h>\n#include <b.h>"
    twice, copies = compiled(source, SEARCH), closure_of(source, SEARCH)
    (place / "i1/b.h").unlink()
    link(place / "i1/a.h", place / "i1/b.h")
    assert compiled(source, SEARCH) != twice
    assert closure_of(source, SEARCH) != copies


def test_a_header_in_memory_shares_the_inode_of_a_file_of_its_name(place: Path) -> None:
    text = "#pragma once\n#ifdef SEEN\n" + value("twice") + "#endif\n#define SEEN\n"
    source, memory = '#include "m.h"\n#include <b.h>', {"m.h": text}
    lay(place, {"i1/b.h": text})
    twice, apart = compiled(source, SEARCH, memory=memory), closure_of(source, SEARCH, memory=memory)
    os.link(place / "i1/b.h", place / "work/m.h")
    assert compiled(source, SEARCH, memory=memory) != twice
    assert closure_of(source, SEARCH, memory=memory) != apart


def test_a_link_that_is_turned_elsewhere_is_noticed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    lay(place, {"i1/real/x.h": value("real"), "i1/other/x.h": value("other")})
    (place / "i1/link").symlink_to("real")
    source = "#include <real/x.h>\n#undef DONE\n#define v_real v_again\n#include <link/x.h>"
    ptx, before = compiled(source, SEARCH), closure_of(source, SEARCH)
    (place / "i1/link").unlink()
    (place / "i1/link").symlink_to("other")
    assert compiled(source, SEARCH) != ptx
    assert not before.unchanged()
    assert closure_of(source, SEARCH) != before


def test_many_names_that_lead_nowhere_are_all_watched(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    names = [f"x{number}.h" for number in range(30)]
    source = "".join(f"#if __has_include(<{name}>)\n{value(name[:-2])}#endif\n" for name in names)
    ptx, before = compiled(source, SEARCH), closure_of(source, SEARCH)
    for name in (names[0], names[17], names[-1]):
        lay(place, {f"i2/{name}": ""})
        assert not before.unchanged()
        after = compiled(source, SEARCH), closure_of(source, SEARCH)
        assert after[0] != ptx
        assert after[1] != before
        ptx, before = after


def test_a_header_in_memory_with_the_name_of_the_source_is_refused() -> None:
    with pytest.raises(UncacheableError, match="both called"):
        closure_of('#include "k.cu"', memory={"k.cu": value("memory")})


def test_files_that_include_each_other_are_read_once(place: Path) -> None:
    lay(place, {"i1/a.h": '#pragma once\n#include "../i1/b.h"\n', "i1/b.h": '#pragma once\n#include "../i1/a.h"\n'})
    found = closure_of("#include <a.h>", SEARCH)
    assert sorted(found.names) == ["../i1/b.h", "a.h"]


# Generated trees.

_NAMES = ("a.h", "b.h", "c", "sub/a.h")
_DIRECTORIES = ("work", "i1", "i2", "i1/sub")
_FILES = tuple(f"{directory}/{name}" for directory in _DIRECTORIES for name in _NAMES)

_LINES = st.one_of(
    st.sampled_from(_NAMES).map(lambda name: f'#include "{name}"\n'),
    st.sampled_from(_NAMES).map(lambda name: f"#include <{name}>\n"),
    st.sampled_from(_NAMES).map(lambda name: f"#include_next <{name}>\n"),
    st.sampled_from(_NAMES).map(lambda name: f"#if __has_include(<{name}>)\n#define ONE {name}\n#endif\n"),
    st.sampled_from(_NAMES).map(lambda name: f"#undef H\n#define H <{name}>\n"),
    st.just("#ifdef H\n#include H\n#endif\n"),
    st.integers(0, 3).map(lambda n: f"#ifndef V{n}\n#define V{n}\n{value(str(n))}#endif\n"),
    st.integers(0, 3).map(lambda n: f"#ifdef V{n}\n#undef V{n + 1}\n#else\n{value(f'e{n}')}#define V{n}\n#endif\n"),
)
_TEXTS = st.tuples(st.booleans(), st.lists(_LINES, min_size=1, max_size=4)).map(
    lambda drawn: ("#pragma once\n" if drawn[0] else "") + "".join(drawn[1])
)
_TREES = st.dictionaries(st.sampled_from(_FILES), _TEXTS, max_size=7)
_CHANGES = st.tuples(st.sampled_from(_FILES), st.one_of(st.none(), _TEXTS))


def test_generated_trees_with_one_key_have_one_output(tmp_path_factory: pytest.TempPathFactory, scale: int) -> None:
    """Whatever the trees, in whichever directory: two that share a key compile to the same."""
    outputs: dict[tuple[str, str], bytes | None] = {}
    roots = iter(range(10**6))
    base = tmp_path_factory.mktemp("trees")
    seen = {"changed": 0, "kept": 0}

    @settings(max_examples=120 * scale, deadline=None, suppress_health_check=list(HealthCheck))
    @given(tree=_TREES, changes=st.lists(_CHANGES, min_size=1, max_size=3), source=_TEXTS)
    def check(tree: dict[str, str], changes: list[tuple[str, str | None]], source: str) -> None:
        root = base / str(next(roots))
        for directory in _DIRECTORIES:
            (root / directory).mkdir(parents=True)
        os.chdir(root / "work")
        lay(root, tree)
        flags = (f"-I{root}/i1", f"-I{root}/i2")
        before: tuple[bytes | None, str] | None = None
        for name, text in [(None, None), *changes]:
            if name is not None:
                path = root / name
                if text is None and not path.is_file():
                    continue
                lay(root, {name: text})
            ptx, key = compiled(source, flags), closure_of(source, flags).digest
            known = outputs.setdefault((source, key), ptx)
            assert known == ptx, "one key, two outputs"
            if before is not None:
                seen["changed" if before[1] != key else "kept"] += 1
                assert before[0] == ptx or before[1] != key
            before = ptx, key

    here = Path.cwd()
    try:
        check()
    finally:
        os.chdir(here)
    assert seen["changed"] and seen["kept"]
