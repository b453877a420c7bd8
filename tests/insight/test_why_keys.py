"""``why`` for entries with keys of their own: real compiles by NVRTC and real keys, one thing changed at a time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import hotstart
from hotstart.compilers import nvrtc
from hotstart.insight.why import NEVER_SEEN, entries_made, explain_entry, explain_key, explain_run, find_entries
from hotstart.launch import records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SOURCE = '#include "tile.h"\nextern "C" __global__ void scale(float *x) { x[0] *= TILE; }\n'


@pytest.fixture
def cache(tmp_path: Path) -> hotstart.Cache:
    return hotstart.Cache(tmp_path / "store", memory=0)


@pytest.fixture
def compile(cache: hotstart.Cache, tmp_path: Path) -> Callable[..., list[str]]:  # noqa: A001
    """Compile for real; what ``why`` says of the entry that was made, field by field."""
    include = tmp_path / "include"
    include.mkdir()
    (include / "tile.h").write_text("#define TILE 16\n")

    def run(source: str = SOURCE, arch: str = "sm_80", options: tuple[str, ...] = (), **more: Any) -> list[str]:
        start = time.time_ns()
        kernel = nvrtc.compile(
            source, arch=arch, options=["-I", str(include), *options], name="scale.cu", cache=cache, **more
        )
        assert not kernel.from_cache, "nothing was compiled"
        assert cache.disk is not None
        (put,) = entries_made(cache.disk, start, time.time_ns() + 1)
        answer = explain_entry(cache.disk, put)
        return list(answer["changed"].values()) if answer["status"] == "changed" else [answer["status"]]

    return run


def test_a_first_compile_was_never_seen(compile: Callable[..., list[str]]) -> None:
    assert compile() == [NEVER_SEEN]


def test_another_architecture(compile: Callable[..., list[str]]) -> None:
    compile()
    assert compile(arch="sm_90") == ["options: gpu-architecture sm_80 → sm_90"]


def test_an_option_more(compile: Callable[..., list[str]]) -> None:
    compile()
    assert compile(options=("--use_fast_math",)) == ["options: use_fast_math was added"]
    assert compile(options=("--maxrregcount=32",)) == ["options: maxrregcount 32 was added"]


def test_an_option_that_changes_what_is_included(compile: Callable[..., list[str]]) -> None:
    compile()
    assert compile(options=("-G",)) == [
        "what it includes differs, which may follow from the options",
        "options: device-debug was added",
    ]


def test_an_edited_source(compile: Callable[..., list[str]]) -> None:
    compile()
    (said,) = compile(SOURCE + "// faster\n")
    assert said.startswith("source was edited")


def test_an_edited_header(compile: Callable[..., list[str]], tmp_path: Path) -> None:
    compile()
    (tmp_path / "include" / "tile.h").write_text("#define TILE 32\n")
    assert compile() == ["a header that it includes was edited, added or removed"]


def test_a_header_in_memory(compile: Callable[..., list[str]]) -> None:
    compile('#include "m.h"\n', headers={"m.h": "struct a;"})
    (said,) = compile('#include "m.h"\n', headers={"m.h": "struct b;"})
    assert said.startswith("memory: m.h")


def test_another_target(compile: Callable[..., list[str]]) -> None:
    compile()
    assert compile(targets=("cubin", "ptx")) == ["targets: ptx was added"]


def test_a_variable_that_the_compiler_reads(compile: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    compile()
    monkeypatch.setenv("NV_NVVM_VERSION", "nvvm-latest")
    (said,) = compile()
    assert said == "toolchain: NV_NVVM_VERSION=nvvm-latest was added"


def test_several_changes_are_all_named(compile: Callable[..., list[str]]) -> None:
    compile()
    said = compile(SOURCE + "\n", arch="sm_90")
    assert len(said) == 2
    assert said[0] == "options: gpu-architecture sm_80 → sm_90"


def test_the_nearest_entry_is_compared(compile: Callable[..., list[str]]) -> None:
    compile()
    compile(SOURCE + "// a\n", arch="sm_90", options=("-lineinfo",))
    assert compile(arch="sm_90") == ["options: gpu-architecture sm_80 → sm_90"]


def test_what_came_later_is_not_blamed(compile: Callable[..., list[str]], cache: hotstart.Cache) -> None:
    compile()
    compile(arch="sm_90")
    assert cache.disk is not None
    first = min(entries_made(cache.disk, 0, time.time_ns() + 10**9), key=lambda put: put.created)
    assert explain_entry(cache.disk, first)["status"] == NEVER_SEEN


# -- keys of all shapes ------------------------------------------------------------------

FIELDS: list[tuple[dict[str, object], dict[str, object], str]] = [
    ({"threads": 2}, {"threads": 1}, "threads 2 → 1"),
    ({"torch": "2.12.1"}, {"torch": "2.13.0"}, "torch 2.12.1 → 2.13.0"),
    ({"arch": "sm_80"}, {"arch": "sm_90"}, "arch sm_80 → sm_90"),
    ({"python": "3.11"}, {"python": "3.12"}, "python 3.11 → 3.12"),
    (
        {"device": hotstart.DeviceClass.cuda(8, 0)},
        {"device": hotstart.DeviceClass.cuda(9, 0)},
        "device cuda/sm_80 → cuda/sm_90",
    ),
    ({"options": ["-O2"]}, {"options": ["-O3"]}, "options -O2 → -O3"),
    ({"options": ["-O2"]}, {"options": ["-O2", "-g"]}, "options: -g was added"),
    ({"options": ["-g", "-O2"]}, {"options": ["-O2", "-g"]}, "options: their order"),
    (
        {"attributes": {"proj": (8, 8)}},
        {"attributes": {"out": (8, 8)}},
        "attributes: out 8 8 was added, proj 8 8 was left out",
    ),
    ({"env": {"TRITON_DEBUG": "0"}}, {"env": {"TRITON_DEBUG": "1"}}, "env: TRITON_DEBUG 0 → 1"),
    ({"dtype": "fp32"}, {"dtype": "bf16"}, "dtype fp32 → bf16"),
    ({"shape": (4, 8)}, {"shape": (4, 16)}, "shape 8 → 16"),
    ({}, {"extra": True}, "extra absent → True"),
    ({"flag": None}, {"flag": False}, "flag None → False"),
    ({"source": "a" * 500}, {"source": "a" * 501}, "source was edited (505 → 506 bytes)"),
    ({"grad": True}, {"grad": 1}, "grad True → 1"),
]


@pytest.mark.parametrize(("before", "after", "said"), FIELDS, ids=[said for _, _, said in FIELDS])
def test_every_kind_of_field_in_words(
    cache: hotstart.Cache, before: dict[str, object], after: dict[str, object], said: str
) -> None:
    cache.put(hotstart.Key("model", name="net", **before), {"x": b"1"})
    key = hotstart.Key("model", name="net", **after)
    answer = explain_key(cache.disk, key)
    assert list(answer["changed"].values()) == [said]


D = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"torch": f"torch 2.12.1 {D}"}, {"torch": f"torch 2.13.0 {D}"}, "torch 2.12.1 → 2.13.0"),
        ({"torch": f"torch 2.13.0 {D}"}, {"torch": f"torch 2.13.0 {D[::-1]}"}, "torch 2.13.0 is another build"),
        ({"settings": {"threads": 2}}, {"settings": {"threads": 1}}, "settings: threads 2 → 1"),
        ({"code": D}, {"code": D[::-1]}, "the model's code, or what it calls, was edited"),
        (
            {"tensors": [("proj.weight", (8, 8), "float32")] * 9},
            {"tensors": [("out.weight", (8, 8), "float32")] * 9},
            "parameters or buffers have other names, shapes, types or devices",
        ),
        ({"cpu": "avx2"}, {"cpu": "avx512"}, "cpu avx2 → avx512"),
    ],
)
def test_models_in_words(cache: hotstart.Cache, before: dict[str, object], after: dict[str, object], said: str) -> None:
    """Fields as ``hotstart.torch`` writes them."""
    cache.put(hotstart.Key("torch", name="GPT", **before), {"x": b"1"})
    answer = explain_key(cache.disk, hotstart.Key("torch", name="GPT", **after))
    assert [text.partition(" (")[0] for text in answer["changed"].values()] == [said]


def test_a_helper_two_calls_away_is_named_as_the_function(cache: hotstart.Cache) -> None:
    scope: dict[str, Any] = {}

    def define(body: str) -> hotstart.Key:
        exec(f"def helper(x): return {body}\ndef kernel(x): return helper(x)", scope)
        return hotstart.Key("language", name="kernel", function=hotstart.fingerprint(scope["kernel"]))

    cache.put(define("x + 1"), {"x": b"1"})
    answer = explain_key(cache.disk, define("x + 2"))
    assert list(answer["changed"].values()) == ["function or what it calls was edited"]


def test_a_key_that_is_there_is_a_hit(cache: hotstart.Cache) -> None:
    key = hotstart.Key("model", name="net")
    cache.put(key, {"x": b"1"})
    assert explain_key(cache.disk, key)["status"] == "hit"
    assert explain_key(None, key)["status"] == NEVER_SEEN


def test_a_read_only_store_is_explained_too(cache: hotstart.Cache) -> None:
    cache.put(hotstart.Key("model", name="net", n=1), {"x": b"1"})
    reader = hotstart.Cache(cache.path, read_only=True, memory=0)
    answer = explain_key(reader.disk, hotstart.Key("model", name="net", n=2))
    assert list(answer["changed"].values()) == ["n 1 → 2"]


def test_a_run_explains_the_entries_that_were_made_during_it(cache: hotstart.Cache, tmp_path: Path) -> None:
    cache.put(hotstart.Key("nvrtc", name="k", arch="sm_80"), {"x": b"1"}, cost=1.0)
    cache.put(hotstart.Key("capture", name="torch", group="a"), {"x": b"1"}, cost=1.0)
    started = time.time()
    cache.put(hotstart.Key("nvrtc", name="k", arch="sm_90"), {"x": b"1"}, cost=2.0)
    cache.put(hotstart.Key("capture", name="torch", group="b"), {"x": b"1"}, cost=1.0)
    record = {"name": "x", "command": ["x"], "started": started, "seconds": 1.0, "frameworks": {}}
    records.write(str(tmp_path), record)
    (answer,) = explain_run(str(tmp_path), record, cache.disk)["entries"]
    assert list(answer["changed"].values()) == ["arch sm_80 → sm_90"]


def test_entries_are_found_by_how_their_digest_begins(cache: hotstart.Cache) -> None:
    key = hotstart.Key("nvrtc", name="k")
    cache.put(key, {"x": b"1"})
    assert cache.disk is not None
    assert [put.digest.hex() for put in find_entries(cache.disk, key.digest[:10])] == [key.digest]
    for nonsense in ("", "a", "../..", "zz", "ffff" if key.digest[:4] != "ffff" else "0000"):
        assert find_entries(cache.disk, nonsense) == []
