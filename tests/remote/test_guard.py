"""A remote that fails costs little: retries with an end, and a breaker that all processes of the host share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotstart.remote.breaker import FIRST_COOL_DOWN, LAST_COOL_DOWN, Breaker
from hotstart.remote.contract import AbsentError, BrokenError, Found, RefusedError, Remote, RemoteError, TimedOutError
from hotstart.remote.directory import Directory
from hotstart.remote.guard import Guarded, OpenError
from hotstart.store import files
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


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"1e400 x y", b"\xff" * 300, b"inf 30 x", b"1 1 \n", b"9999999999 30 \n"]
)
def test_a_torn_file_is_no_state(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "breaker").write_bytes(content)
    assert Breaker(str(tmp_path / "breaker")).is_closed(1)


@pytest.mark.parametrize("cause", ["credentials", "clock"])
def test_what_is_wrong_with_one_process_is_not_the_hosts(
    make: Callable[[], Guarded], inner: Failing, clock: Clock, cause: str
) -> None:
    inner.failures = [RefusedError("no", cause)]
    guarded = make()
    with pytest.raises(RefusedError):
        guarded.get("a", 1)
    with pytest.raises(OpenError):
        guarded.put("b", b"1")
    assert not guarded.is_writable()
    other = make()
    assert other.is_writable()
    assert bytes(other.get("a", 1).data) == b"1"
    clock.now += FIRST_COOL_DOWN + 1
    assert bytes(guarded.get("a", 1).data) == b"1"
    assert guarded.put("b", b"1")


def test_after_the_cool_down_a_put_is_worth_preparing(
    make: Callable[[], Guarded], inner: Failing, clock: Clock
) -> None:
    """Else nobody would ever put again, and find out that it works."""
    inner.failures = [RefusedError("no", "denied")]
    guarded = make()
    with pytest.raises(RefusedError):
        guarded.put("b", b"1")
    clock.now += FIRST_COOL_DOWN + 1
    assert guarded.is_writable()
    assert guarded.put("b", b"1")


def test_an_old_file_that_cannot_be_replaced_is_not_for_ever(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "breaker"
    path.write_text(f"{clock.now - 9999:.3f} 30.0 unreachable\n")

    def denied(path: str, *_: object) -> None:
        raise PermissionError(13, "denied", path)

    real = files.open
    # Root may write anywhere: what a home that is read-only says is said here.
    monkeypatch.setattr(
        files, "open", lambda name, how, *mode: (real if how == files.READ else denied)(name, how, *mode)
    )
    monkeypatch.setattr(files, "unlink", denied)
    breaker = Breaker(str(path), clock)
    assert breaker.is_closed(6)
    assert not breaker.is_closed(6), "one call at a time finds out"
    breaker.open("timed_out")
    assert not breaker.is_closed(6)
    clock.now += LAST_COOL_DOWN
    assert breaker.is_closed(6)
    breaker.close()
    assert [breaker.is_closed(6) for _ in range(3)] == [True] * 3


def test_its_file_is_private(make: Callable[[], Guarded], inner: Failing, tmp_path: Path) -> None:
    inner.failures = [TimedOutError("no answer")]
    with pytest.raises(TimedOutError):
        make().get("a", 1)
    found = list((tmp_path / "state").iterdir())
    assert sorted(path.name.rpartition("-")[2] for path in found) == ["read", "write"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in [*found, tmp_path / "state"])


class Hanging(Directory):
    """A client with time-outs of its own whose server accepts and never answers, until ``answer`` is set."""

    unbounded = False

    def __init__(self, root: str, timeout: float) -> None:
        super().__init__(root, timeout=timeout)
        self.asked = threading.Event()
        self.answer = threading.Event()
        self.loading = threading.Event()
        self.loading.set()

    def prepare(self) -> None:
        assert self.loading.wait(60)

    def get(self, name: str, limit: int) -> Found:
        self.asked.set()
        if not self.answer.wait(60):
            raise TimedOutError("no answer")
        return super().get(name, limit)


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    raised: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except RemoteError as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, raised


def test_who_waits_stops_when_another_process_has_waited_in_vain(tmp_path: Path, hang_guard: None) -> None:
    """Else eight processes that begin one after another each wait their own time-out to its end."""
    late, early = Hanging(str(tmp_path), 3600), Hanging(str(tmp_path), 3600)
    one, other = (Guarded(remote, Counters(), str(tmp_path / "state")) for remote in (late, early))
    thread, raised = in_thread(lambda: one.get("a", 1))
    assert late.asked.wait(60)
    other._reading.open("timed_out")
    thread.join(60)
    assert [type(error) for error in raised] == [OpenError]
    assert counted(one) == {"remote.given_up": 1}
    late.answer.set()


def test_a_large_value_on_its_way_out_is_not_given_up_because_others_wait(tmp_path: Path, hang_guard: None) -> None:
    begun, held = threading.Event(), threading.Event()

    class Slow(Directory):
        def put(self, name: str, data: Any, *, replaces: str = "") -> bool:
            begun.set()
            assert held.wait(60)
            return super().put(name, data, replaces=replaces)

    guarded = Guarded(Slow(str(tmp_path / "shared")), Counters(), str(tmp_path / "state"))
    thread, raised = in_thread(lambda: guarded.put("a", bytes(2 << 20)))
    assert begun.wait(60)
    Breaker(guarded._writing._path).open("timed_out")
    time.sleep(0.3)
    assert thread.is_alive()
    held.set()
    thread.join(60)
    assert raised == []
    assert guarded.inner.get("a", 1).size == 2 << 20


def test_loading_the_client_counts_as_waiting_until_it_first_answers(tmp_path: Path, hang_guard: None) -> None:
    """The client itself would wait for a minute: what ends this is the guard's own clock."""
    remote = Hanging(str(tmp_path), 0.5)
    guarded = Guarded(remote, Counters(), str(tmp_path / "state"))
    with pytest.raises(TimedOutError):
        guarded.get("a", 1)
    assert counted(guarded) == {"remote.timed_out": 1}
    remote.answer.set()


def test_a_client_that_loads_slowly_is_no_remote_that_hangs(tmp_path: Path, hang_guard: None) -> None:
    remote = Hanging(str(tmp_path / "shared"), 0.2)
    Directory(remote.root).put("a", b"1")
    guarded = Guarded(remote, Counters(), str(tmp_path / "state"))
    remote.loading.clear()
    remote.answer.set()
    threading.Timer(1.0, remote.loading.set).start()
    assert bytes(guarded.get("a", 1).data) == b"1"


def blocked(path: Path) -> None:
    """A name whose open() blocks in the kernel, as one on a dead NFS server does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def release(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


def test_a_file_system_that_blocks_costs_one_time_out(tmp_path: Path, hang_guard: None) -> None:
    blocked(tmp_path / "shared" / "a")

    def make() -> Guarded:
        return Guarded(Directory(str(tmp_path / "shared"), timeout=0.3), Counters(), str(tmp_path / "state"))

    guarded = make()
    with pytest.raises(TimedOutError):
        guarded.get("a", 1)
    for other in (guarded, make()):
        with pytest.raises(OpenError):
            other.get("a", 1)
        with pytest.raises(OpenError):
            other.put("b", b"1")
    assert counted(guarded) == {"remote.timed_out": 1, "remote.skipped": 2}
    release(tmp_path / "shared" / "a")


def test_streams_and_listings_of_a_file_system_that_blocks_end_too(tmp_path: Path, hang_guard: None) -> None:
    blocked(tmp_path / "shared" / "a")
    for call in (
        lambda remote: list(remote.stream("a", 0, 10)),
        lambda remote: remote.get_many(["a"], 10),
        lambda remote: remote.get_ranges("a", [(0, 1), (1, 1)]),
    ):
        guarded = Guarded(Directory(str(tmp_path / "shared"), timeout=0.2), Counters(), "")
        with pytest.raises(TimedOutError):
            call(guarded)
        release(tmp_path / "shared" / "a")


def test_a_file_system_that_is_slow_but_alive_is_waited_for(tmp_path: Path, hang_guard: None) -> None:
    class Slow(Directory):
        def _read(self, fd: int, length: int, start: int) -> bytes:
            for _ in range(10):
                time.sleep(0.1)
                self.beats += 1
            return super()._read(fd, length, start)

    remote = Slow(str(tmp_path / "shared"), timeout=0.4)
    assert remote.put("a", b"1")
    guarded = Guarded(remote, Counters(), str(tmp_path / "state"))
    assert bytes(guarded.get("a", 1).data) == b"1"


def test_threads_that_hang_do_not_pile_up(tmp_path: Path, clock: Clock, hang_guard: None) -> None:
    blocked(tmp_path / "shared" / "a")
    guarded = Guarded(Directory(str(tmp_path / "shared"), timeout=0.1), Counters(), str(tmp_path / "state"), clock)
    for _ in range(10):
        clock.now += LAST_COOL_DOWN + 1
        with pytest.raises(RemoteError):
            guarded.get("a", 1)
    assert counted(guarded) == {"remote.timed_out": 4, "remote.skipped": 6}
    release(tmp_path / "shared" / "a")
    deadline = time.monotonic() + 60
    while guarded._calls.lost and time.monotonic() < deadline:
        release(tmp_path / "shared" / "a")
        time.sleep(0.05)
    assert guarded._calls.lost == 0


def test_what_breaks_in_writing_ends_writing_alone(make: Callable[[], Guarded], inner: Failing) -> None:
    """A store that is full may answer every put with 500."""
    inner.failures = [BrokenError("500", "http_500") for _ in range(6)]
    guarded = make()
    for _ in range(3):
        with pytest.raises(RemoteError):
            guarded.put("b", b"1")
    assert not guarded.is_writable()
    assert bytes(guarded.get("a", 1).data) == b"1"


def test_one_that_has_answered_may_ask_to_slow_down_for_longer(make: Callable[[], Guarded], inner: Failing) -> None:
    """Ten thousand hosts in step ask too much for some seconds: if all took that for an end, all would compile."""
    throttled = [BrokenError("slow down", "throttled") for _ in range(1000)]
    fresh, known = make(), make()
    assert bytes(known.get("a", 1).data) == b"1"
    for guarded, calls in ((known, 10), (fresh, 3)):
        for breaker in (guarded._reading, guarded._writing):
            breaker.close()
        guarded.timeout = 1e-6  # no time for second attempts, however short the pause
        inner.asked, inner.failures = 0, list(throttled)
        for _ in range(20):
            with pytest.raises(RemoteError):
                guarded.get("a", 1)
        assert inner.asked == calls
