"""A bar for what takes longer than a second: on stderr, on a terminal, and gone at the end."""

from __future__ import annotations

import os
import sys
import time

from .output import coloured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from threading import Event, Thread
    from typing import Self, TypeVar

    T = TypeVar("T")

#: Nothing is shown before this many seconds, and not more often than this.
PATIENCE = 1.0
_PAUSE = 0.1
_LENGTH = 24


class Progress:
    """``with Progress("verifying", total) as bar: bar.step()``. Without a total it counts.

    Silent unless stderr is a terminal, so that nothing of it reaches a log.
    """

    def __init__(self, what: str, total: int = 0, *, patience: float = PATIENCE) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._begun = time.monotonic()
        self._next = self._begun + patience
        self._shown = False
        self._silent = not _is_terminal()

    def step(self, amount: int = 1) -> None:
        """So much more is done."""
        self._done += amount
        if self._silent:
            return
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PAUSE
            self._draw(now)

    def _draw(self, now: float) -> None:
        from ..insight.words import duration

        if self._total:
            part = min(1.0, self._done / self._total)
            full = int(part * _LENGTH)
            left = (now - self._begun) * (1 - part) / part if part else 0.0
            bar = "█" * full + "░" * (_LENGTH - full)
            text = f"{self._what} {bar} {part:4.0%}  {duration(left)} left"
        else:
            text = f"{self._what}: {self._done:,}"
        try:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        except (OSError, ValueError):
            columns = 80
        self._shown = self._write(f"\r{text[: columns - 1]}\x1b[K") or self._shown

    def close(self) -> None:
        if self._shown:
            self._write("\r\x1b[K")
            self._shown = False

    def _write(self, text: str) -> bool:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            self._silent = True  # the terminal went away, or has no such characters
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def watched(items: Iterable[T], what: str, total: int = 0) -> Iterator[T]:
    """``items``, with a bar while they are gone through."""
    with Progress(what, total) as bar:
        for item in items:
            yield item
            bar.step()


class Waiting:
    """``with Waiting("verifying"): …`` for work that cannot say how far it is: shows that time passes."""

    def __init__(self, what: str, *, patience: float = PATIENCE) -> None:
        self._what = what
        self._patience = patience
        self._thread: Thread | None = None
        self._stop: Event | None = None

    def __enter__(self) -> Self:
        if _is_terminal():
            from threading import Event, Thread

            self._stop = Event()
            self._thread = Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def _show(self) -> None:
        from ..insight.words import duration

        stop = self._stop
        if stop is None or stop.wait(self._patience):
            return
        begun = time.monotonic() - self._patience
        try:
            while not stop.wait(_PAUSE):
                place = int((time.monotonic() - begun) * 12) % (2 * _LENGTH)
                place = min(place, 2 * _LENGTH - 1 - place)
                bar = "░" * place + "█" + "░" * (_LENGTH - 1 - place)
                sys.stderr.write(f"\r{self._what} {bar}  {duration(time.monotonic() - begun)}\x1b[K")
                sys.stderr.flush()
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        except (OSError, ValueError):
            pass  # the terminal went away

    def __exit__(self, *_: object) -> None:
        if self._stop is not None and self._thread is not None:
            self._stop.set()
            self._thread.join()


def _is_terminal() -> bool:
    """Where the cursor can be moved: NO_COLOR turns off colours alone, a dumb terminal both."""
    if os.environ.get("TERM") == "dumb":
        return False
    try:
        return coloured(sys.stderr) or sys.stderr.isatty()
    except (ValueError, AttributeError):
        return False
