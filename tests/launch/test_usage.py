"""Protects what a record says: which units were read, which are new, what was built although it had been found, and
that nothing is claimed where nobody can know."""

from __future__ import annotations

import os
import sys

import pytest

from hotstart.launch import usage
from hotstart.launch.environment import plan
from hotstart.launch.report import frameworks, line
from hotstart.launch.session import Event, Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tests.launch.launching import HOTSTART, Place, on_a_terminal
else:
    from launching import HOTSTART, Place, on_a_terminal

#: As much processor time as importing a framework takes: who uses less is not asked what it read.
WORK = f"{sys.executable} -c 'sum(range(30_000_000))';"
MAKE = (
    'for n in AAA BBB; do mkdir -p "$TRITON_CACHE_DIR/$n"; echo code > "$TRITON_CACHE_DIR/$n/k.cubin"; sleep 0.2; done;'
)


def events(record: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((unit["event"], unit["name"]) for unit in record["units"])


def test_what_is_read_is_a_hit_and_what_is_not_is_none(place: Place) -> None:
    place.sh(MAKE)
    assert events(place.record()) == [("new", "AAA"), ("new", "BBB")]
    for _ in range(3):  # each time anew: a file system notes the first read after a change, and no other
        place.sh(WORK + 'cat "$TRITON_CACHE_DIR/BBB/k.cubin" > /dev/null')
        record = place.record()
        assert events(record) == [("hit", "BBB")]
        assert record["frameworks"]["triton"]["hits"] == 1
        assert record["frameworks"]["triton"]["seconds_saved"] > 0.1
    place.sh(WORK)
    assert place.record()["units"] == []


def test_a_unit_that_is_read_keeps_its_entry_young(place: Place) -> None:
    """Or eviction would take what a program reads at every start for what nobody wants."""
    place.sh(MAKE)
    old = 1_000_000_000
    entries = sorted((place.home / "store" / "entries").rglob("?" * 62))
    assert len(entries) == 2
    for path in entries:
        os.utime(path, (old, old))
    place.sh(WORK + 'cat "$TRITON_CACHE_DIR/BBB/k.cubin" > /dev/null')
    assert events(place.record()) == [("hit", "BBB")]
    assert sorted(path.stat().st_mtime > old for path in entries) == [False, True]


def test_what_was_read_by_who_wrote_it_is_noted_the_next_time(place: Place) -> None:
    place.sh(MAKE + 'sleep 0.1; cat "$TRITON_CACHE_DIR"/*/* > /dev/null')
    place.sh(WORK + 'cat "$TRITON_CACHE_DIR"/*/* > /dev/null')
    assert events(place.record()) == [("hit", "AAA"), ("hit", "BBB")]


def test_what_was_restored_and_not_read_is_no_hit(place: Place) -> None:
    place.sh(MAKE)
    place.wipe()
    place.sh(WORK + 'cat "$TRITON_CACHE_DIR/AAA/k.cubin" > /dev/null')
    assert events(place.record()) == [("hit", "AAA"), ("restored", "AAA"), ("restored", "BBB")]


def test_looking_at_files_ourselves_is_no_hit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from hotstart.launch.verify import verify

    place.sh(MAKE)
    monkeypatch.setenv("HOTSTART_HOME", str(place.home))
    assert verify().ok == 2
    place.sh(WORK)
    assert events(place.record()) == []


def session_with(place: Place, *found: Event) -> Session:
    from hotstart.config import load

    session = Session(load(), str(place.home), str(place.root), plan(str(place.root), {}).rows, "w")
    session.events += found
    return session


GRAPH, CODE = ("torch", "graph (FX)", "f"), ("torch", "generated code and what was built of it", "aa/c")


def test_a_graph_that_was_found_and_built_again_is_no_complete_hit(place: Place) -> None:
    session = session_with(place, Event(GRAPH, "hit", 50.0), Event(CODE, "new", 40.0))
    numbers = frameworks(session, plan(str(place.root), {}))["torch"]
    assert numbers["rebuilt"] == 1
    assert numbers["seconds_saved"] == 10.0
    assert "1 built again" in line(session, plan(str(place.root), {}))


def test_a_new_graph_with_new_code_is_a_miss_and_not_built_again(place: Place) -> None:
    new = Event((*GRAPH[:2], "g"), "new", 5.0)
    session = session_with(place, Event(GRAPH, "hit", 50.0), new, Event(CODE, "new", 40.0))
    assert frameworks(session, plan(str(place.root), {}))["torch"]["rebuilt"] == 0


def test_where_reads_are_not_noted_nobody_claims_to_know(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(place.path)

    class Flags:
        f_flag = real.f_flag | usage._NOATIME

    assert usage.reads_are_known(str(place.path)) is not bool(real.f_flag & usage._NOATIME)
    monkeypatch.setattr(os, "statvfs", lambda _: Flags)
    assert not usage.reads_are_known(str(place.path))
    session = session_with(place, Event(CODE, "new", 1.0))
    session.reads_known = False
    assert frameworks(session, plan(str(place.root), {}))["torch"]["hits"] is None


def test_on_a_terminal_one_line_says_it_and_quiet_says_nothing(place: Place) -> None:
    env = place.environ
    _, printed = on_a_terminal([*HOTSTART, "run", "sh", "-c", MAKE], env, place.work)
    assert printed.count(b"\n") == 1
    assert printed.startswith(b"hotstart: triton 2 new (10 B)")
    read = WORK + 'cat "$TRITON_CACHE_DIR"/*/*'
    _, printed = on_a_terminal([*HOTSTART, "run", "sh", "-c", read], env, place.work)
    assert b"triton 2 hits; 0." in printed
    _, printed = on_a_terminal([*HOTSTART, "run", "--quiet", "sh", "-c", read], env, place.work)
    assert printed == b"code\r\ncode\r\n"
    _, printed = on_a_terminal([*HOTSTART, "run", "true"], env, place.work)
    assert printed == b""
