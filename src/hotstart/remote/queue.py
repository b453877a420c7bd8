"""What is on its way out: jobs for one thread in the background, bounded, in order.

A crash loses what is queued, and nothing comes of that but a compile somewhere else.
A normal end waits for it, but not for long.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..store.counters import Counters

#: What may wait at the same time.
MOST_JOBS = 512
MOST_BYTES = 256 << 20


class Queue:
    """Jobs run one after another. One that raises is counted; the thread goes on."""

    def __init__(self, counters: Counters, limit: float = 10.0) -> None:
        """``limit``: seconds that an end which nobody else sees to may wait."""
        self._counters = counters
        self._limit = limit
        self._start()

    def _start(self) -> None:
        self._jobs: deque[tuple[Callable[[], object], int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False

    def add(self, job: Callable[[], object], size: int = 0) -> bool:
        """Run ``job`` some time; False when there is no room, and it will not be run."""
        with self._changed:
            if len(self._jobs) >= MOST_JOBS or (self._jobs and self._bytes + size > MOST_BYTES):
                self._counters.add("remote.dropped")
                return False
            self._jobs.append((job, size))
            self._bytes += size
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="hotstart remote", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter is ending
                    self._thread = None
                    self._jobs.pop()
                    self._counters.add("remote.dropped")
                    return False
                self._see_to_the_end()
            self._changed.notify_all()
        return True

    def _see_to_the_end(self) -> None:
        """Processes of ``multiprocessing`` end without what is registered at exit: they have a register apart."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(self, self.flush, args=(self._limit,), exitpriority=10)

    def flush(self, limit: float) -> bool:
        """Wait until everything is out, at most ``limit`` seconds; whether it is. What is left is dropped."""
        deadline = time.monotonic() + limit
        with self._changed:
            while self._jobs or self._busy:
                left = deadline - time.monotonic()
                if left <= 0:
                    self._counters.add("remote.dropped", len(self._jobs) + self._busy)
                    self._jobs.clear()
                    self._bytes = 0
                    return False
                self._changed.wait(left)
        return True

    def after_fork(self) -> None:
        """In a child: what was queued is the parent's to send."""
        self._start()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    self._changed.wait()
                job, size = self._jobs.popleft()
                self._busy = True
            try:
                job()
            except Exception as error:
                self._counters.add(f"remote.failed.{type(error).__name__}")
            finally:
                with self._changed:
                    self._bytes = max(0, self._bytes - size)
                    self._busy = False
                    self._changed.notify_all()
