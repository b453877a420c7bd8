"""A remote that drips is given up after one time-out; one that is slow but comes along is waited for."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from hotstart.remote.contract import Found, TimedOutError, in_parallel, progress
from hotstart.remote.directory import Directory
from hotstart.remote.guard import Guarded, OpenError
from hotstart.remote.url import open_remote
from hotstart.store.counters import Counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.proxy import Proxy
else:
    from proxy import Proxy


@pytest.mark.parametrize("kind", ["seaweed", "valkey_server"])
@pytest.mark.parametrize("first", [True, False])
def test_a_body_that_drips_is_given_up_and_left_alone(
    kind: str, first: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, hang_guard: None
) -> None:
    """A thousand bytes would take four minutes, with never more than a quarter of a second between two."""
    server = request.getfixturevalue(kind)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    with Proxy(server.port) as proxy:
        remote = Guarded(open_remote(server.url(uuid.uuid4().hex, proxy.port) + "&timeout=1"), Counters(), "")
        open_remote(remote.inner.address).put("a", bytes(1000))
        if not first:
            assert remote.get("a", 4 << 20).size == 1000
        proxy.mode = "drip"
        with pytest.raises(TimedOutError):
            remote.get("a", 4 << 20)
        with pytest.raises(OpenError):
            remote.get("a", 4 << 20)
        assert remote._counters.snapshot()["remote.timed_out"] == 1


class Slow(Directory):
    unbounded = False
    slowest = 1000

    def get(self, name: str, limit: int) -> Found:
        for _ in range(10):
            time.sleep(0.1)
            progress(self.each)
        return super().get(name, limit)

    each = 0


def test_time_is_given_for_what_comes(tmp_path: Path, hang_guard: None) -> None:
    remote: Any = Slow(str(tmp_path / "shared"), timeout=0.3)
    assert remote.put("a", b"1")
    remote.each = 200
    guarded = Guarded(remote, Counters(), "")
    assert guarded.get("a", 1).size == 1
    assert set(guarded.get_many(["a", "b"], 1)) == {"a"}
    remote.each = 1
    with pytest.raises(TimedOutError):
        guarded.get("a", 1)


def test_an_interrupt_does_not_wait_for_the_others(hang_guard: None) -> None:
    """Ctrl-C reaches the thread that asked; those beside it may hang for as long as they like."""
    import threading

    hanging = threading.Event()

    def work(number: int) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        hanging.wait(3600)

    with pytest.raises(KeyboardInterrupt):
        in_parallel(work, range(8))
    hanging.set()
