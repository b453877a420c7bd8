"""A breaker whose state all processes of the host share: a small file that exists while the remote is left alone.

    no file        closed: ask
    until > now    open: do not ask, at once
    until <= now   one process claims the probe, by moving ``until`` ahead under a lock; the others stay away

So a remote that hangs costs the host one time-out per cool-down, not one per kernel.
The file holds ``until`` and the cool-down in seconds and the cause. Times are of the
wall clock, which processes and containers share; one that lies further ahead than any
cool-down can be was written before the clock was set back, and counts as past.
"""

from __future__ import annotations

import os
import time

from ..store import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: After the first failure, and the most after repeated ones.
FIRST_COOL_DOWN = 30.0
LAST_COOL_DOWN = 600.0

#: Attempts of one call, and the longest pause before the second, doubled before the third; all of it is jittered.
ATTEMPTS = 3
PAUSE = 0.05
SLOW_DOWN = 0.2

#: Calls that failed in all attempts, one after another, before a remote that does answer is left alone.
_STRIKES = 2
#: The same for one that asks everybody to slow down; and when it has answered this process before, so that it is
#: known to be alive: a fleet in step asks too much for seconds, and all of it compiling is worse than all waiting.
_STRIKES_THROTTLED = 3
_STRIKES_OVERLOADED = 10

#: Refusals that mean this one object and say nothing of the next.
_OF_ONE_OBJECT = {"oversize"}

#: Refusals that mean this process, not the host: others may have other credentials, or another idea of the time.
_OF_ONE_PROCESS = {"forked", "missing_extra", "credentials", "clock"}

# What a failure means for the calls after it.
NOTHING = "nothing"
SIDE = "side"  # reading, or writing, whichever it was, is over for a while
BOTH = "both"
PROCESS = "process"  # over for this process; others may fare better


class Strikes:
    """Failures in a row of one side, as one process sees them. Knows no clock and no network: the simulation runs it.

    A store that is full may say so with a 500 for every put, and be a good one to read from: what
    breaks in writing ends writing alone. What cannot be read is of no use to a writer either.
    """

    __slots__ = ("_alive", "_count", "_writing")

    def __init__(self, *, writing: bool) -> None:
        self._count = 0
        self._alive = False
        self._writing = writing

    def answered(self) -> None:
        self._count = 0
        self._alive = True

    def failed(self, kind: str, cause: str) -> str:
        """What follows from a call that failed in all its attempts; kind and cause are those of ``RemoteError``."""
        if kind == "timed_out" or cause == "unreachable":
            return BOTH
        if kind == "refused":
            if cause in _OF_ONE_PROCESS:
                return PROCESS
            return NOTHING if cause in _OF_ONE_OBJECT else SIDE
        self._count += 1
        throttled = _STRIKES_OVERLOADED if self._alive else _STRIKES_THROTTLED
        if self._count < (throttled if cause == "throttled" else _STRIKES):
            return NOTHING
        return SIDE if self._writing else BOTH


def pause_after(attempt: int, cause: str, chance: float) -> float:
    """Seconds before the next attempt; ``chance`` is from 0 to 1."""
    return float(chance * (SLOW_DOWN if cause == "throttled" else PAUSE) * 2**attempt)


class Breaker:
    """One switch, by the path of its file; ``""`` for a process that has nowhere to keep it."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        #: What there is without a file.
        self._until = 0.0
        self._cool_down = 0.0
        self._cause = ""
        self._probing = False
        #: The ``until`` of a file that is over and cannot be removed.
        self._over = 0.0

    def is_closed(self, probe: float) -> bool:
        """Whether to ask. True once per cool-down to one process, which has ``probe`` seconds to find out."""
        state = self._read()
        if state is None:
            return True
        until, cool_down, cause = state
        now = self._now()
        if now < until <= now + LAST_COOL_DOWN:
            return False
        return self._claim(now + probe, cool_down, cause)

    @property
    def hangs(self) -> bool:
        """Whether another process has waited a whole time-out since we were let through: no use in waiting on."""
        return not self._probing and self.cause == "timed_out"

    @property
    def is_open(self) -> bool:
        """Whether nobody is to ask now. Claims nothing."""
        state = self._read()
        return state is not None and self._now() < state[0] <= self._now() + LAST_COOL_DOWN

    @property
    def cause(self) -> str:
        """Why it is open; empty when it is not."""
        state = self._read()
        return state[2] if state is not None else ""

    def open(self, cause: str) -> None:
        """Leave the remote alone for a while; for longer each time a probe failed."""
        state = self._read()
        cool_down = FIRST_COOL_DOWN
        if state is not None and self._probing:
            cool_down = min(2 * state[1], LAST_COOL_DOWN)
        self._probing = False
        self._write(self._now() + cool_down, cool_down, cause)

    def close(self) -> None:
        """It answered."""
        self._probing = False
        self._cause = ""
        if self._path:
            try:
                files.unlink(self._path)
            except OSError:
                # Another process was faster; or it stays, and this process knows better.
                state = self._read()
                self._over = state[0] if state is not None else 0.0

    def _claim(self, until: float, cool_down: float, cause: str) -> bool:
        if self._path:
            try:
                fd = files.open(self._path, files.UPDATE, files.PRIVATE_FILE)
            except FileNotFoundError:
                return True  # another process had an answer
            except OSError:
                # In a home that cannot be written it would stay for ever: each process finds out by itself.
                self._until, self._cool_down, self._cause, self._probing = until, cool_down, cause, True
                return True
            try:
                files.flock(fd, files.LOCK_EX | files.LOCK_NB)
                state = self._read()
                if state is None or not self._now() < state[0] <= self._now() + LAST_COOL_DOWN:
                    self._write(until, cool_down, cause)
                    self._probing = True
            except OSError:
                pass  # somebody else is claiming it
            finally:
                files.close_quietly(fd)
            return self._probing
        self._until, self._probing = until, True
        return True

    def _read(self) -> tuple[float, float, str] | None:
        if self._path:
            try:
                fd = files.open(self._path, files.READ)
                try:
                    text = files.read(fd, 256).decode("ascii", "replace")
                finally:
                    files.close(fd)
            except OSError:
                text = ""
            parts = text.split(" ", 2)
            try:
                until, cool_down, cause = (
                    float(parts[0]),
                    min(max(float(parts[1]), 1.0), LAST_COOL_DOWN),
                    parts[2].strip(),
                )
                # One that could not be written here is this process's own, and the later one counts.
                if cause and until != self._over and not (self._cause and self._until > until):
                    return until, cool_down, cause
            except (ValueError, IndexError):
                pass  # absent, or torn by a crash: nothing is known
        return (self._until, self._cool_down, self._cause) if self._cause else None

    def _write(self, until: float, cool_down: float, cause: str) -> None:
        self._until, self._cool_down, self._cause = until, cool_down, cause
        if not self._path:
            return
        temporary = f"{self._path}.{files.unique_name()}"
        data = f"{until:.3f} {cool_down:.1f} {cause}\n".encode()
        try:
            try:
                fd = files.open(temporary, files.CREATE, files.PRIVATE_FILE)
            except FileNotFoundError:
                files.makedirs(os.path.dirname(self._path))
                fd = files.open(temporary, files.CREATE, files.PRIVATE_FILE)
            try:
                files.write_all(fd, [data], len(data))
            finally:
                files.close(fd)
            files.rename(temporary, self._path)
            self._cause = ""  # the file is the truth from here on
        except OSError:
            pass  # nowhere to keep it: this process at least knows

    def _now(self) -> float:
        return self._clock()
