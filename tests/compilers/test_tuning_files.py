"""Tuning results as files and as data: types survive, merging loses nothing, what is not understood changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotstart import Cache, UsageError
from hotstart.compilers.timings import FIELDS, Timings, from_json, plain, to_json
from hotstart.compilers.tuning import TuningCache
from hotstart.keys.digest import encode

SPACE = [{"block": block, "warps": warps} for block in (32, 64, 128) for warps in (4, 8)]


def tuning(root: Path, *, tuner: str = "bench 1") -> TuningCache:
    return TuningCache(Cache(root), tuner=tuner, toolchain="triton 3.9", device="NVIDIA H200", driver="580.65")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def add_two(x: int) -> int:
    return x + 2


DATA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.complex_numbers()
    | st.sampled_from(["$tuple", "$", "\udc80"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.sampled_from(["$set", "$"]), inner, max_size=3)
        | st.frozensets(st.integers() | st.text(max_size=3), max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=300)
@given(DATA)
def test_everything_that_can_be_in_a_key_comes_back_from_json_as_it_was(value: Any) -> None:
    text = json.dumps(to_json(plain(value)), allow_nan=False)
    assert encode(from_json(json.loads(text))) == encode(value)


def timings(*adds: tuple[int, float | None]) -> Timings:
    made = Timings(dict.fromkeys(FIELDS, ""), [0, 1, 2])
    for number, value in adds:
        made.add(number, value, "" if value is not None else f"reason {number}")
    return made


ADDS = st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(0, 40) | st.just(float("nan"))), max_size=40)


@settings(max_examples=100)
@given(ADDS, ADDS, ADDS)
def test_merging_takes_everything_in_any_order_any_number_of_times(a: Any, b: Any, c: Any) -> None:
    def merged(*parts: Any) -> bytes:
        total = timings()
        for part in parts:
            total.merge(timings(*part))
        return total.artifacts()["timings"]

    assert merged(a, b, c) == merged(c, a, b) == merged(b, b, c, a, a) == merged([*a, *b, *c])
    whole = timings(*a, *b, *c)
    assert Timings.stored(whole.artifacts()).artifacts() == whole.artifacts()
    assert Timings.imported(json.loads(json.dumps(whole.exported()))).artifacts() == whole.artifacts()


def test_an_exported_file_makes_another_machine_start_tuned(tmp_path: Path) -> None:
    here = tuning(tmp_path / "here")
    here.get_or_tune(add_two, {"n": (1, 2.5), 3: b"\0"}, SPACE, lambda config: 1 / config["block"], name="k1")
    here.get_or_tune("k2", None, ["a", ("a",), 1, True, float("inf")], lambda config: len(str(config)))
    tuning(tmp_path / "here", tuner="another").record("k2", None, [1], [(1, 1.0)])
    path = tmp_path / "tuned.json"
    text = here.export_json(path)
    assert path.read_text() == text and len(json.loads(text)["results"]) == 2, "another tuner's results went along"
    there = tuning(tmp_path / "there")
    for _ in range(2):
        assert there.import_json(path) == 2
    assert (
        there.get_or_tune(
            add_two, {"n": (1, 2.5), 3: b"\0"}, SPACE, lambda config: 1 / config["block"], name="k1"
        ).measured
        == 0
    )
    assert there.export_json() == text
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_importing_adds_to_what_is_stored(tmp_path: Path) -> None:
    here, there = tuning(tmp_path / "here"), tuning(tmp_path / "there")
    here.record("k", 1, SPACE, [(SPACE[0], 2.0), (SPACE[1], None)])
    there.record("k", 1, SPACE, [(SPACE[0], 1.0), (SPACE[1], 5.0), (SPACE[2], 3.0)])
    there.import_text(here.export_json())
    known = there.get("k", 1, SPACE)
    assert known is not None and known.failed == []
    assert known.timings == [(SPACE[0], 1.0), (SPACE[2], 3.0), (SPACE[1], 5.0)]


RESULT: dict[str, Any] = {**dict.fromkeys(FIELDS, "x"), "configs": [{"config": 1, "seconds": [1.0]}]}
HEAD: dict[str, Any] = {"hotstart": "tuning", "schema": 1}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({**HEAD, "schema": 2, "results": [RESULT]}, "of schema 2, this hotstart reads schema 1"),
        ({**HEAD, "schema": "1", "results": []}, "of schema '1'"),
        ({**HEAD, "schema": True, "results": []}, "of schema True"),
        ({"hotstart": "tuning"}, "of schema None"),
        ({"results": [RESULT]}, "not a tuning file"),
        ([], "not a tuning file"),
        ("", "not a tuning file"),
        ("{", "not a tuning file"),
        ('{"hotstart": "tuning", "schema": 1, "results": [NaN]}', "not a tuning file"),
        ("[" * 100_000, "not a tuning file"),
        (HEAD, "results is a list"),
        ({**HEAD, "results": [RESULT, {**RESULT, "configs": []}]}, "result 1: "),
        ({**HEAD, "results": [RESULT, 5]}, "result 1: "),
        ({**HEAD, "results": [RESULT, {"configs": RESULT["configs"]}]}, "result 1: name, kernel"),
        ({**HEAD, "results": [RESULT, {**RESULT, "configs": [{"config": 1}, {"config": 1}]}]}, "twice"),
        ({**HEAD, "results": [RESULT, {**RESULT, "configs": [{"config": 1, "seconds": ["x"]}]}]}, "times"),
        ({**HEAD, "results": [RESULT, {**RESULT, "configs": [{"config": 1, "seconds": [-1]}]}]}, "times"),
        ({**HEAD, "results": [RESULT, {**RESULT, "configs": [{"config": 1, "seconds": [True]}]}]}, "times"),
        ({**HEAD, "results": [RESULT, {**RESULT, "configs": [{"config": 1, "seconds": [10**400]}]}]}, "times"),
        ({**HEAD, "results": [RESULT, {**RESULT, "kernel": {"$code": "os.system"}}]}, "unknown tag"),
        ({**HEAD, "results": [RESULT, {**RESULT, "kernel": {"$tuple": 5}}]}, "needs a list"),
        ({**HEAD, "results": [RESULT, {**RESULT, "kernel": {"$dict": [[[1], 2]]}}]}, "unhashable"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_file_that_cannot_be_understood_is_refused_in_one_line_and_nothing_is_lost(
    root: Path, tmp_path: Path, content: Any, says: str
) -> None:
    cache = tuning(root)
    cache.record("k", 1, SPACE, [(SPACE[0], 1.0)])
    before = cache.export_json()
    path = tmp_path / "file.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UsageError) as caught:
        cache.import_json(path)
    message = str(caught.value)
    assert says in message and str(path) in message and "nothing was imported" in message and "\n" not in message
    assert tuning(root).export_json() == before
    assert len(Cache(root)) == 1


def test_where_no_file_can_be_written_the_file_that_was_asked_for_is_named(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "absent" / "x.json"
    with pytest.raises(FileNotFoundError) as caught:
        tuning(root).export_json(path)
    assert caught.value.filename == str(path)
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError) as refused:
        tuning(root).export_json(tmp_path / "directory")
    assert refused.value.filename == str(tmp_path / "directory")
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_a_file_that_is_no_text_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_bytes(b"\xff\xfe\0")
    with pytest.raises(UsageError, match="not text"):
        tuning(root).import_json(tmp_path / "file.json")
    with pytest.raises(FileNotFoundError):
        tuning(root).import_json(tmp_path / "absent.json")


def test_results_of_another_schema_in_the_store_are_not_seen_and_not_touched(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hotstart.compilers import tuning as module

    monkeypatch.setattr(module, "SCHEMA", 2)
    tuning(root).record("k", 1, SPACE, [(SPACE[0], 0.0)])
    monkeypatch.undo()
    assert tuning(root).get("k", 1, SPACE) is None
    tuning(root).get_or_tune("k", 1, SPACE, lambda config: 1.0)
    monkeypatch.setattr(module, "SCHEMA", 2)
    kept = tuning(root).get("k", 1, SPACE)
    assert kept is not None and kept.timings == [(SPACE[0], 0.0)]
