"""A remote that fails costs little: retries with an end, and a breaker that all processes of the host share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotstart.remote.breaker import FIRST_COOL_DOWN, LAST_COOL_DOWN, Breaker
from hotstart.remote.contract import AbsentError, BrokenError, Found, RefusedError, Remote, RemoteError, TimedOutError
from hotstart.remote.directory import Directory
from hotstart.remote.guard import Guarded, OpenError
from hotstart.store.counters import Counters


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Failing(Directory):
    """A shared directory that raises what it is told, as often as it is told."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.failures: list[RemoteError] = []
        self.asked = 0

    def get(self, name: str, limit: int) -> Found:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        return super().get(name, limit)

    def put(self, name: str, data: Any, *, replaces: str = "") -> bool:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        return super().put(name, data, replaces=replaces)


def counted(guarded: Guarded) -> dict[str, float]:
    found = guarded._counters.snapshot()
    return {name: count for name, count in found.items() if name.startswith("remote.")}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def inner(tmp_path: Path) -> Failing:
    remote = Failing(str(tmp_path / "shared"))
    Directory(remote.root).put("a", b"1")
    return remote


@pytest.fixture
def make(tmp_path: Path, inner: Remote, clock: Clock) -> Callable[[], Guarded]:
    """Each call is another process, as far as the breaker can tell."""
    return lambda: Guarded(inner, Counters(), str(tmp_path / "state"), clock)


def test_a_time_out_is_paid_once_by_the_host(make: Callable[[], Guarded], inner: Failing, clock: Clock) -> None:
    inner.failures = [TimedOutError("no answer")]
    one, other = make(), make()
    with pytest.raises(TimedOutError):
        one.get("a", 1)
    assert inner.asked == 1
    for guarded in (one, other, make()):
        with pytest.raises(OpenError):
            guarded.get("a", 1)
        with pytest.raises(OpenError):
            guarded.put("b", b"1")
    assert inner.asked == 1
    assert counted(one) == {"remote.timed_out": 1, "remote.skipped": 2}


def test_after_the_cool_down_one_process_probes(make: Callable[[], Guarded], inner: Failing, clock: Clock) -> None:
    inner.failures = [TimedOutError("no answer")]
    one, other = make(), make()
    with pytest.raises(TimedOutError):
        one.get("a", 1)
    clock.now += FIRST_COOL_DOWN + 1
    assert one._reading.is_closed(6)
    assert not other._reading.is_closed(6)
    one._reading.close()
    assert bytes(other.get("a", 1).data) == b"1"


def test_a_success_closes_it_for_all(make: Callable[[], Guarded], inner: Failing, clock: Clock) -> None:
    inner.failures = [TimedOutError("no answer")]
    with pytest.raises(TimedOutError):
        make().get("a", 1)
    clock.now += FIRST_COOL_DOWN + 1
    assert bytes(make().get("a", 1).data) == b"1"
    clock.now += 1
    assert bytes(make().get("a", 1).data) == b"1"


def test_probes_that_fail_come_less_and_less_often(make: Callable[[], Guarded], inner: Failing, clock: Clock) -> None:
    inner.failures = [TimedOutError("no answer") for _ in range(40)]
    guarded = make()
    start = clock.now
    for _ in range(6 * 3600):
        clock.now += 1
        with pytest.raises(RemoteError):
            guarded.get("a", 1)
    # 30 + 60 + … + 600, then every 600 s.
    assert inner.asked <= 6 * 3600 / LAST_COOL_DOWN + 6
    assert clock.now > start


@pytest.mark.parametrize("step", [-600.0, -86_400.0])
def test_a_clock_set_back_does_not_keep_it_open(
    make: Callable[[], Guarded], inner: Failing, clock: Clock, step: float
) -> None:
    inner.failures = [TimedOutError("no answer")]
    guarded = make()
    with pytest.raises(TimedOutError):
        guarded.get("a", 1)
    clock.now += step
    if step < -LAST_COOL_DOWN:
        assert bytes(guarded.get("a", 1).data) == b"1"
    else:
        clock.now += LAST_COOL_DOWN + FIRST_COOL_DOWN + 1
        assert bytes(guarded.get("a", 1).data) == b"1"


def test_what_is_broken_is_tried_again(make: Callable[[], Guarded], inner: Failing) -> None:
    inner.failures = [BrokenError("reset", "reset"), BrokenError("500", "http_500")]
    guarded = make()
    assert bytes(guarded.get("a", 1).data) == b"1"
    assert inner.asked == 3
    assert counted(guarded) == {"remote.retried": 2}


def test_what_stays_broken_is_left_alone(make: Callable[[], Guarded], inner: Failing) -> None:
    inner.failures = [BrokenError("500", "http_500") for _ in range(100)]
    guarded = make()
    for _ in range(20):
        with pytest.raises(RemoteError):
            guarded.get("a", 1)
    assert inner.asked == 6
    found = counted(guarded)
    assert (found["remote.broken.http_500"], found["remote.skipped"]) == (2, 18)


@pytest.mark.parametrize("cause", ["denied", "full"])
def test_who_may_not_write_still_reads(make: Callable[[], Guarded], inner: Failing, cause: str) -> None:
    inner.failures = [RefusedError("no", cause)]
    guarded = make()
    with pytest.raises(RefusedError):
        guarded.put("b", b"1")
    with pytest.raises(OpenError):
        guarded.put("b", b"1")
    assert not guarded.is_writable()
    assert not make().is_writable()
    assert bytes(guarded.get("a", 1).data) == b"1"
    assert counted(guarded) == {f"remote.refused.{cause}": 1, "remote.skipped": 1}


def test_one_object_too_large_says_nothing_of_the_next(make: Callable[[], Guarded], inner: Failing) -> None:
    inner.failures = [RefusedError("large", "oversize")]
    guarded = make()
    with pytest.raises(RefusedError):
        guarded.put("b", b"1")
    assert guarded.put("b", b"1")


def test_absent_is_an_answer(make: Callable[[], Guarded], inner: Failing) -> None:
    guarded = make()
    for _ in range(10):
        with pytest.raises(AbsentError):
            guarded.get("nothing", 1)
    assert inner.asked == 10
    assert counted(guarded) == {}


def test_without_a_place_for_its_file_the_process_knows(inner: Failing, clock: Clock) -> None:
    for state in ("", "/proc/no/such/place"):
        inner.failures = [TimedOutError("no answer")]
        guarded = Guarded(inner, Counters(), state, clock)
        with pytest.raises(TimedOutError):
            guarded.get("a", 1)
        with pytest.raises(OpenError):
            guarded.get("a", 1)
        clock.now += FIRST_COOL_DOWN + 1
        if not state:
            assert bytes(guarded.get("a", 1).data) == b"1"
            assert bytes(guarded.get("a", 1).data) == b"1"


@pytest.mark.parametrize("content", [b"", b"nonsense", b"1e400 x y", b"\xff" * 300, b"inf 30 x"])
def test_a_torn_file_is_no_state(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "breaker").write_bytes(content)
    assert Breaker(str(tmp_path / "breaker")).is_closed(1)


def test_its_file_is_private(make: Callable[[], Guarded], inner: Failing, tmp_path: Path) -> None:
    inner.failures = [TimedOutError("no answer")]
    with pytest.raises(TimedOutError):
        make().get("a", 1)
    found = list((tmp_path / "state").iterdir())
    assert sorted(path.name.rpartition("-")[2] for path in found) == ["read", "write"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in [*found, tmp_path / "state"])
