"""``Guarded``: a remote that cannot get in the way. Time-outs, retries, a breaker, counters; around any backend.

What went wrong decides: *timed out* opens the breaker at once and is not tried again,
*broken* is tried again with jitter while there is time and opens it when it persists,
*refused* opens only the side (reading or writing) that was refused, *absent* is an
answer like any other. Every method raises RemoteError, quickly once a breaker is open, and
nothing else whatever a client raises: a panic in Rust is *broken*, as nonsense is.

Who waits looks at the breaker meanwhile: when another process of the host has waited a
whole time-out, all of them stop, however late they began. Until a remote has first
answered this process, loading its client counts as waiting for it.
"""

from __future__ import annotations

import random
import time

from ..log import say
from .breaker import ATTEMPTS, BOTH, PROCESS, SIDE, Breaker, Strikes, pause_after
from .contract import (
    AbsentError,
    BrokenError,
    Found,
    Item,
    RefusedError,
    Remote,
    RemoteError,
    TimedOutError,
    as_remote_error,
)
from .workers import Calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from ..store.counters import Counters
    from .contract import Bytes

#: How often who waits looks for what others found out, in seconds.
_LOOK = 0.05

#: A client that takes this part of a time-out, or more, to load leaves the rest of it, and at least half, for asking.
_AT_LEAST = 0.5

#: A client that has answered before may use its whole time-out, and then say itself what it waited for.
_GRACE = 1.1

#: A larger value on its way out is no question: it is not given up because others had no answer to theirs.
_LARGE = 1 << 20

#: Threads that hang in a remote before nobody asks it any more, until one of them comes back.
_MOST_LOST = 4


#: What this process cannot do, and never will.
_FOR_GOOD = {"forked", "missing_extra"}


class OpenError(RemoteError):
    """The breaker is open: nothing was asked, or what was asked is not waited for."""

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
        self._strikes = {self._reading: Strikes(writing=False), self._writing: Strikes(writing=True)}
        self._calls = Calls()
        self._answered = False
        #: Of this process alone: its credentials, its clock.
        self._own = Breaker("", clock)
        self._off = ""

    def get(self, name: str, limit: int) -> Found:
        return self._call(self._reading, lambda inner: inner.get(name, limit))  # type: ignore[no-any-return]

    def get_range(self, name: str, start: int, length: int, tag: str = "") -> Bytes:
        return self._call(self._reading, lambda inner: inner.get_range(name, start, length, tag))  # type: ignore[no-any-return]

    def get_many(self, names: Iterable[str], limit: int) -> dict[str, Found]:
        asked = list(names)
        return self._call(self._reading, lambda inner: inner.get_many(asked, limit))  # type: ignore[no-any-return]

    def put(self, name: str, data: Bytes, *, replaces: str = "") -> bool:
        # Create-only, so a second attempt does no harm; where the first got through it says False.
        return self._call(  # type: ignore[no-any-return]
            self._writing, lambda inner: inner.put(name, data, replaces=replaces), large=len(data) > _LARGE
        )

    def delete(self, names: Iterable[str]) -> None:
        gone = list(names)
        self._call(self._writing, lambda inner: inner.delete(gone))

    def list(self, prefix: str) -> Iterator[Item]:
        return iter(self._call(self._reading, lambda inner: list(inner.list(prefix))))

    def stream(self, name: str, start: int, length: int) -> Iterator[Bytes]:
        """Not tried again here: the consumer has seen the beginning, and asks for the rest itself.

        One that broke in the middle is no strike: something came, and will again.
        """
        self._check(self._reading)
        came = False
        try:
            for piece in self._in_a_worker(self.inner.stream(name, start, length)):
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

    def _in_a_worker(self, pieces: Iterator[Bytes]) -> Iterator[Bytes]:
        """Each piece has its own time; and a Ctrl-C does not wait for it, as it would within the client."""
        while True:
            piece = self._wait(self._reading, lambda _: next(pieces, None), large=True)
            if piece is None:
                return
            yield piece

    @property
    def requests(self) -> int:  # type: ignore[override]
        return self.inner.requests

    def close(self) -> None:
        self.inner.close()

    def after_fork(self) -> None:
        self._off, self._answered = "", False
        self._calls.after_fork()
        self.inner.after_fork()

    def is_writable(self) -> bool:
        """Whether a put is worth preparing. Claims nothing."""
        return not (self.read_only or self._off or self._own.is_open or self._writing.is_open)

    def _check(self, side: Breaker) -> None:
        cause = self._off
        if not cause and self._calls.lost >= _MOST_LOST:
            cause = "timed_out"
        if not cause and not self._own.is_closed(self.timeout + 1):
            cause = self._own.cause
        if cause or not side.is_closed(self.timeout + 1):
            self._counters.add("remote.skipped")
            raise OpenError(f"{self.shown} is left alone for a while: {cause or side.cause}", "breaker")

    def _call(self, side: Breaker, call: Callable[[Remote], Any], *, large: bool = False) -> Any:
        self._check(side)
        started = time.monotonic()
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = self._wait(side, call, large=large)
            except AbsentError:
                self._succeeded(side)
                raise
            except OpenError:
                self._counters.add("remote.given_up")
                raise
            except BrokenError as error:
                pause = pause_after(attempt, error.cause, random.random())
                if attempt < ATTEMPTS and time.monotonic() - started + pause < self.timeout / 2:
                    self._counters.add("remote.retried")
                    time.sleep(pause)
                    continue
                self._failed(side, error)
                raise
            except RemoteError as error:
                if error.cause == "forked" and self._move_out():
                    continue
                self._failed(side, error)
                raise
            self._succeeded(side)
            return answer

    def _wait(self, side: Breaker, call: Callable[[Remote], Any], *, large: bool) -> Any:
        """What ``call`` returns. Raises TimedOutError when a time-out has passed and what got through since is less
        than the slowest that is waited for; OpenError when another process has found out that the remote hangs."""
        inner = self.inner
        beats = inner.beats
        last = time.monotonic()
        job = self._calls.start(inner.prepare, lambda: call(inner))
        while not job.wait(_LOOK):
            now = time.monotonic()
            if inner.beats != beats:
                beats, last, self._answered = inner.beats, now, True
            # A client bounds each wait for a byte, not how many of them there are: that is done here.
            allowed = self.timeout * (_GRACE if self._answered and not inner.unbounded else 1) + job.got / inner.slowest
            # Still loading its client: that is not the remote's fault, and ends by itself.
            end = max(last + allowed, job.ready + self.timeout * _AT_LEAST) if job.ready else now + 1
            if now >= end:
                self._calls.give_up(job)
                raise TimedOutError(f"{self.shown}: {'too few bytes' if job.got else 'no answer'} in time")
            if not large and side.hangs:
                self._calls.give_up(job)
                raise OpenError(f"{self.shown}: another process waited in vain", "breaker")
        try:
            return job.result()
        except RemoteError:
            raise
        except BaseException as error:
            raise as_remote_error(error, self.shown) from None

    def _move_out(self) -> bool:
        """In a forked child whose parent used the client: from now on a process of its own asks, if one can be had."""
        from .elsewhere import Elsewhere

        moved = Elsewhere.of(self.inner)
        if moved is None:
            return False
        self.inner = moved
        return True

    def _succeeded(self, side: Breaker) -> None:
        self._answered = True
        self._strikes[side].answered()
        if self._own.cause:
            self._own.close()
        if side.cause:
            side.close()

    def _failed(self, side: Breaker, error: RemoteError) -> None:
        self._counters.add(
            f"remote.{error.kind}.{error.cause}" if error.cause != error.kind else f"remote.{error.kind}"
        )
        if isinstance(error, (RefusedError, BrokenError)) and error.cause != "unreachable":
            self._answered = True
        then = self._strikes[side].failed(error.kind, error.cause)
        if then == PROCESS:
            if error.cause in _FOR_GOOD:
                self._off = error.cause
            else:
                self._own.open(error.cause)  # a token may be renewed, a clock set
            say("warning", f"{error}; not used by this process", once=f"off {self.shown}")
        elif then == SIDE:
            self._open((side,), error)
        elif then == BOTH:
            self._open((self._reading, self._writing), error)

    def _open(self, sides: tuple[Breaker, ...], error: RemoteError) -> None:
        for side in sides:
            side.open(error.cause)
        what = "not written to" if sides == (self._writing,) else "left alone"
        say("warning", f"{error}; {what} for a while", once=f"breaker {self.shown} {error.cause}")
