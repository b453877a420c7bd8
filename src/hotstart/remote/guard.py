"""``Guarded``: a remote that cannot get in the way. Retries, a breaker, counters; a decorator around any backend.

What went wrong decides: *timed out* opens the breaker at once and is not tried again,
*broken* is tried again with jitter while there is time and opens it when it persists,
*refused* opens only the side (reading or writing) that was refused, *absent* is an
answer like any other. Every method raises RemoteError, quickly once a breaker is open.
"""

from __future__ import annotations

import random
import time

from ..log import say
from .breaker import Breaker
from .contract import AbsentError, BrokenError, Found, Item, RefusedError, Remote, RemoteError, TimedOutError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from ..store.counters import Counters
    from .contract import Bytes

_ATTEMPTS = 3

#: The longest pause before the second attempt; doubled before the third. All of it is jittered.
_PAUSE = 0.05
_SLOW_DOWN = 0.2

#: Calls that failed in all attempts, one after another, before a remote that does answer is left alone.
_STRIKES = 2
#: The same for one that is alive and asks everybody to slow down.
_STRIKES_THROTTLED = 3

#: Refusals that mean this one object and say nothing of the next.
_OF_ONE_OBJECT = {"oversize"}

#: Refusals that mean this process, not the host.
_OF_ONE_PROCESS = {"forked", "missing_extra"}


class OpenError(RemoteError):
    """The breaker is open: nothing was asked."""

    kind = "breaker"


class Guarded(Remote):
    """``remote`` with retries and breakers, whose files are under ``state``; empty for in this process only."""

    def __init__(self, remote: Remote, counters: Counters, state: str, clock: Callable[[], float] = time.time) -> None:
        self.inner = remote
        self.shown = remote.shown
        self.read_only = remote.read_only
        self.max_value = remote.max_value
        self.timeout = remote.timeout
        self.identity = remote.identity
        self._counters = counters
        path = f"{state}/breaker-{remote.identity}" if state else ""
        self._reading = Breaker(path and f"{path}-read", clock)
        self._writing = Breaker(path and f"{path}-write", clock)
        self._strikes = 0
        self._off = ""

    def get(self, name: str, limit: int) -> Found:
        return self._call(self._reading, self.inner.get, name, limit)  # type: ignore[no-any-return]

    def get_range(self, name: str, start: int, length: int, tag: str = "") -> Bytes:
        return self._call(self._reading, self.inner.get_range, name, start, length, tag)  # type: ignore[no-any-return]

    def get_many(self, names: Iterable[str], limit: int) -> dict[str, Found]:
        return self._call(self._reading, self.inner.get_many, list(names), limit)  # type: ignore[no-any-return]

    def put(self, name: str, data: Bytes, *, replaces: str = "") -> bool:
        # Create-only, so a second attempt does no harm; where the first got through it says False.
        return self._call(self._writing, lambda: self.inner.put(name, data, replaces=replaces))  # type: ignore[no-any-return]

    def delete(self, names: Iterable[str]) -> None:
        self._call(self._writing, self.inner.delete, list(names))

    def list(self, prefix: str) -> Iterator[Item]:
        return iter(self._call(self._reading, lambda: list(self.inner.list(prefix))))

    def stream(self, name: str, start: int, length: int) -> Iterator[Bytes]:
        """Not tried again here: the consumer has seen the beginning, and asks for the rest itself.

        One that broke in the middle is no strike: something came, and will again.
        """
        self._check(self._reading)
        came = False
        try:
            for piece in self.inner.stream(name, start, length):
                came = True
                yield piece
        except AbsentError:
            raise
        except BrokenError as error:
            if came:
                self._counters.add("remote.resumed")
            else:
                self._failed(self._reading, error)
            raise
        except RemoteError as error:
            self._failed(self._reading, error)
            raise
        self._succeeded(self._reading)

    @property
    def requests(self) -> int:  # type: ignore[override]
        return self.inner.requests

    def close(self) -> None:
        self.inner.close()

    def after_fork(self) -> None:
        self._off = ""
        self.inner.after_fork()

    def is_writable(self) -> bool:
        """Whether a put is worth preparing. Claims nothing."""
        return not self.read_only and not self._off and not self._writing.cause

    def _check(self, side: Breaker) -> None:
        if self._off or not side.is_closed(self.timeout + 1):
            self._counters.add("remote.skipped")
            raise OpenError(f"{self.shown} is left alone for a while: {self._off or side.cause}", "breaker")

    def _call(self, side: Breaker, call: Callable[..., Any], *arguments: Any) -> Any:
        self._check(side)
        started = time.monotonic()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answer = call(*arguments)
            except AbsentError:
                self._succeeded(side)
                raise
            except BrokenError as error:
                pause = random.uniform(0, (_SLOW_DOWN if error.cause == "throttled" else _PAUSE) * 2**attempt)
                if attempt < _ATTEMPTS and time.monotonic() - started + pause < self.timeout / 2:
                    self._counters.add("remote.retried")
                    time.sleep(pause)
                    continue
                self._failed(side, error)
                raise
            except RemoteError as error:
                self._failed(side, error)
                raise
            self._succeeded(side)
            return answer
        raise AssertionError("unreachable")

    def _succeeded(self, side: Breaker) -> None:
        self._strikes = 0
        if side.cause:
            side.close()

    def _failed(self, side: Breaker, error: RemoteError) -> None:
        self._counters.add(
            f"remote.{error.kind}.{error.cause}" if error.cause != error.kind else f"remote.{error.kind}"
        )
        if isinstance(error, TimedOutError) or error.cause == "unreachable":
            self._open((self._reading, self._writing), error)
        elif isinstance(error, RefusedError):
            if error.cause in _OF_ONE_PROCESS:
                self._off = error.cause
                say("warning", f"{error}; not used by this process", once=f"off {self.shown}")
            elif error.cause not in _OF_ONE_OBJECT:
                self._open((side,), error)
        else:
            self._strikes += 1
            if self._strikes >= (_STRIKES_THROTTLED if error.cause == "throttled" else _STRIKES):
                self._open((self._reading, self._writing), error)

    def _open(self, sides: tuple[Breaker, ...], error: RemoteError) -> None:
        for side in sides:
            side.open(error.cause)
        what = "not written to" if sides == (self._writing,) else "left alone"
        say("warning", f"{error}; {what} for a while, compiles go on", once=f"breaker {self.shown} {error.cause}")
