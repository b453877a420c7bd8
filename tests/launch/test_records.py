"""Records of runs: bounded, private, whole or absent, and never in the way of the run."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hotstart import UsageError
from hotstart.launch import records, totals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def record(name: str = "train", **more: object) -> dict[str, Any]:
    frameworks = {"triton": {"hits": 3, "new": 1, "restored": 2, "bytes": 100, "seconds_saved": 1.5, "left_alone": []}}
    return {"name": name, "command": ["python", "x.py"], "status": 0, "frameworks": frameworks, **more}


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    kept = record(units=[{"unit": "u", "event": "new", "cost": 0.5}], context={"python": "3.11", "env": {"A": None}})
    assert records.write(str(tmp_path), kept)
    assert records.read(str(tmp_path), kept["id"]) == kept
    assert records.read(str(tmp_path), kept["id"][:20]) == kept
    assert records.written == kept


def test_secrets_on_the_command_line_are_not_kept(tmp_path: Path) -> None:
    records.write(str(tmp_path), {**record(), "command": ["serve", "--token", "hunter2"]})
    (found,) = records.last(str(tmp_path))
    assert found["command"] == ["serve", "--token", "(hidden)"]


def test_newest_first_and_by_name(tmp_path: Path) -> None:
    for n in range(5):
        records.write(str(tmp_path), record("even" if n % 2 == 0 else "odd", n=n))
    assert [found["n"] for found in records.last(str(tmp_path), n=3)] == [4, 3, 2]
    assert [found["n"] for found in records.last(str(tmp_path), "odd", n=9)] == [3, 1]
    assert records.last(str(tmp_path), "never") == []


def test_without_a_directory_there_are_none(tmp_path: Path) -> None:
    assert records.last(str(tmp_path / "none")) == []
    assert records.read(str(tmp_path / "none"), "0-1-2") is None


def test_the_number_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "KEPT", 10)
    for n in range(100):
        records.write(str(tmp_path), record(n=n))
    left = records.last(str(tmp_path), n=1000)
    assert 10 <= len(left) <= 10 + 32
    assert [found["n"] for found in left] == list(range(99, 99 - len(left), -1))


def test_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        kept = record()
        records.write(str(tmp_path / "home"), kept)
    finally:
        os.umask(before)
    place = Path(records.directory(str(tmp_path / "home")))
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE((place / kept["id"]).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "home" / "totals").stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "foreign", "directory"])
def test_a_damaged_record_is_passed_over_and_counted(tmp_path: Path, damage: str) -> None:
    first, second = record(n=1), record(n=2)
    records.write(str(tmp_path), first)
    records.write(str(tmp_path), second)
    path = Path(records.directory(str(tmp_path))) / second["id"]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if damage == "directory":
        path.mkdir()
    else:
        path.write_bytes({"flip": bytes(data), "cut": bytes(data[:40]), "empty": b"", "foreign": b"{}"}[damage])
    found = records.last(str(tmp_path))
    assert [kept["n"] for kept in found] == [1]
    assert found.damaged == 1
    assert records.read(str(tmp_path), second["id"]) is None


@pytest.mark.parametrize("id", ["../x", "a/b", "", ".", "..", "x\0y"])
def test_an_id_never_leaves_its_directory(tmp_path: Path, id: str) -> None:
    assert records.read(str(tmp_path), id) is None
    with pytest.raises(UsageError):
        records.write(str(tmp_path), {"id": id})


def test_a_home_that_cannot_be_written_costs_the_record_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = record()
    assert records.write(str(tmp_path / "file" / "home"), kept) is False
    assert records.written == kept


def test_what_is_not_plain_data_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="plain data"):
        records.write(str(tmp_path), record(context=object()))


def test_very_many_units_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_UNITS", 10)
    kept = record(units=[{"unit": str(n)} for n in range(25)])
    records.write(str(tmp_path), kept)
    (found,) = records.last(str(tmp_path))
    assert (len(found["units"]), found["units_left_out"]) == (10, 15)


def test_concurrent_writers_lose_nothing(tmp_path: Path, fork: Callable[..., Any]) -> None:
    def some(who: int) -> int:
        return sum(records.write(str(tmp_path), record(who=who, n=n)) for n in range(20))

    children = [fork(some, who) for who in range(4)]
    assert [child.result() for child in children] == [20] * 4
    found = records.last(str(tmp_path), n=1000)
    assert found.damaged == 0
    assert {(kept["who"], kept["n"]) for kept in found} == {(who, n) for who in range(4) for n in range(20)}
    sums = totals.read(str(tmp_path))
    assert sums is not None
    assert sums["runs"] == 80
    assert sums["frameworks"]["triton"]["hits"] == 240
    assert sums["frameworks"]["triton"]["seconds_saved"] == pytest.approx(120)


def test_totals_outlive_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "KEPT", 1)
    for _ in range(50):
        records.write(str(tmp_path), record())
    sums = totals.read(str(tmp_path))
    assert sums is not None
    assert sums["frameworks"]["triton"] == {
        "hits": 150, "new": 50, "restored": 100, "bytes": 5000, "seconds_saved": 75.0, "runs": 50,
    }  # fmt: skip


def test_damaged_totals_begin_anew(tmp_path: Path) -> None:
    records.write(str(tmp_path), record())
    path = tmp_path / "totals"
    path.write_bytes(path.read_bytes()[:-1])
    assert totals.read(str(tmp_path)) is None
    records.write(str(tmp_path), record())
    sums = totals.read(str(tmp_path))
    assert sums is not None
    assert sums["runs"] == 1


def test_numbers_that_are_none_do_not_stop_a_run(tmp_path: Path) -> None:
    strange = {"jax": {"hits": "many", "new": None, "rebuilt": ["a.so", "b.so"]}}
    assert records.write(str(tmp_path), {"name": "x", "frameworks": strange})
    assert totals.read(str(tmp_path)) is None
    assert totals.add(str(tmp_path), {"jax": {"rebuilt": ["a.so", "b.so"]}})
    sums = totals.read(str(tmp_path))
    assert sums is not None
    assert sums["frameworks"]["jax"] == {"rebuilt": 2}


def test_clearing_forgets_runs_and_sums(tmp_path: Path) -> None:
    records.write(str(tmp_path), record())
    assert records.clear(str(tmp_path)) == 1
    totals.clear(str(tmp_path))
    assert records.last(str(tmp_path)) == []
    assert totals.read(str(tmp_path)) is None
