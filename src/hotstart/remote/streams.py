"""A pack on its way: cut into members as its bytes come, and worked on while the rest is under way; and back."""

from __future__ import annotations

import threading

from .contract import BrokenError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from queue import Queue
    from typing import Any

    from .contract import Bytes
    from .guard import Guarded
    from .packs import Row

    Members = list[tuple[Row, Bytes]]

#: How often a stream that broke is taken up again where it ended.
_RESUMES = 3

#: Members that are handed on in one go: they get their names in one turn of the store's lock.
_TOGETHER = 64


class Workers:
    """Threads that do ``work`` on what they find in a queue until ``end``, which raises the first error of theirs."""

    def __init__(self, number: int, queue: Queue[Any], work: Callable[[Any], None]) -> None:
        self._queue, self._work = queue, work
        self._errors: list[Exception] = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(number)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._work(item)
            except Exception as error:
                self._errors.append(error)  # and go on: who fills the queue waits for it to empty

    def end(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


def in_order(work: Callable[[Any], Any], items: Iterable[Any], number: int, ahead: int) -> Iterator[Any]:
    """What ``work`` makes of each item, in their order, by ``number`` threads that are at most ``ahead`` of the reader.

    What it raises is raised when its turn comes.
    """
    from collections import deque
    from concurrent.futures import Future, ThreadPoolExecutor

    with ThreadPoolExecutor(number) as pool:
        waiting: deque[Future[Any]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Cutter:
    """Cuts the bytes of a pack into its members as they come; what lies within one piece is not copied."""

    __slots__ = ("_following", "_held", "_rows", "at")

    def __init__(self, rows: list[Row]) -> None:
        #: Where in the pack the next piece begins.
        self.at = rows[0].offset
        self._rows = rows
        self._following = 0
        #: The beginning of the member that follows, as far as it came.
        self._held: list[Bytes] = []

    def take(self, data: Bytes) -> Members:
        """The members that this piece completes."""
        piece, begin = memoryview(data), self.at
        self.at += len(piece)
        found: Members = []
        for row in self._rows[self._following :]:
            first, last = row.offset - begin, row.offset + row.length - begin
            if last > len(piece):
                if first < len(piece):
                    self._held.append(piece[max(first, 0) :])
                break
            found.append((row, piece[first:last] if first >= 0 else b"".join((*self._held, piece[:last]))))
            self._held.clear()
        self._following += len(found)
        return found


def members_of(remote: Guarded, name: str, start: int, rows: list[Row]) -> Iterator[Members]:
    """The rows with their bytes, some at a time as they come: one request from the first to the last, gaps and all.

    Several ranges would spare the gaps and cost a round trip each; packs are pushed as
    they were first needed together, so gaps are rare.
    """
    end = rows[-1].offset + rows[-1].length
    cutter = _Cutter(rows)
    for attempt in range(_RESUMES + 1):
        try:
            for piece in remote.stream(name, start + cutter.at, end - cutter.at):
                members = cutter.take(piece)
                for at in range(0, len(members), _TOGETHER):
                    yield members[at : at + _TOGETHER]
            return
        except BrokenError:
            if attempt == _RESUMES:
                raise
