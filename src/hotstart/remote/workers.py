"""Calls that can be given up: each runs in a thread of its own, which is left behind if it never comes back.

A file system whose server died blocks in the kernel, a resolver in libc: no time-out of
a client reaches there. Threads are kept and used again, so that one is there also when the
interpreter is ending and starts no more.
"""

from __future__ import annotations

import threading
import time

from .contract import listen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Job:
    """One call under way."""

    __slots__ = ("_answer", "_error", "_over", "got", "ready")

    def __init__(self) -> None:
        self._over = threading.Event()
        self._answer: Any = None
        self._error: BaseException | None = None
        #: When it began to ask, after whatever it had to import; 0 until then.
        self.ready = 0.0
        #: Bytes that got through so far.
        self.got = 0

    def wait(self, seconds: float) -> bool:
        """Whether it is over, after at most so long."""
        return self._over.wait(seconds)

    def result(self) -> Any:
        """What the call returned, or raise what it raised. To be asked when it is over."""
        if self._error is not None:
            raise self._error
        return self._answer

    def run(self, prepare: Callable[[], object], call: Callable[[], Any]) -> None:
        listen(self._hear)
        try:
            prepare()
            self.ready = time.monotonic()
            self._answer = call()
        except BaseException as error:
            self._error = error
        finally:
            listen(None)
            self._over.set()

    def _hear(self, count: int) -> None:
        self.got += count


class Calls:
    """Threads for the calls to one remote."""

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """In a child: no thread came along."""
        self._idle: list[_Worker] = []
        self._lost: list[Job] = []

    def start(self, prepare: Callable[[], object], call: Callable[[], Any]) -> Job:
        job = Job()
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _Worker(self._idle)
            try:
                worker.start()
            except RuntimeError:
                job.run(prepare, call)  # the interpreter is ending, and no thread of ours is free
                return job
        worker.give(lambda: job.run(prepare, call))
        return job

    def give_up(self, job: Job) -> None:
        """Nobody waits for it any more."""
        self._lost.append(job)

    @property
    def lost(self) -> int:
        """Calls that were given up and have not come back yet."""
        self._lost = [job for job in self._lost if not job.wait(0)]
        return len(self._lost)


class _Worker(threading.Thread):
    def __init__(self, idle: list[_Worker]) -> None:
        super().__init__(name="hotstart call", daemon=True)
        self._idle = idle
        self._work: Callable[[], None] | None = None
        self._given = threading.Lock()
        self._given.acquire()

    def give(self, work: Callable[[], None]) -> None:
        self._work = work
        self._given.release()

    def run(self) -> None:
        while True:
            self._given.acquire()
            work, self._work = self._work, None
            if work is not None:
                work()
            del work  # an idle thread keeps no answer alive
            self._idle.append(self)
