"""Counts of what happened, safe under threads: what ``Cache.stats()`` shows."""

from __future__ import annotations

import errno
from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType


class Counters:
    """Named numbers that only grow. ``+=`` on a dict loses updates between threads; this does not."""

    __slots__ = ("_lock", "_misses", "_puts", "_values")

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._misses = self._puts = 0
        self._lock: LockType = allocate_lock()

    def add(self, name: str, amount: float = 1) -> None:
        with self._lock:
            self._values[name] = self._values.get(name, 0) + amount

    def miss(self) -> None:
        """``add("miss")`` at a third of the price: a miss is little more than one system call."""
        with self._lock:
            self._misses += 1

    def put(self) -> None:
        """``add("put")``, as cheaply."""
        with self._lock:
            self._puts += 1

    def error(self, where: str, error: OSError) -> None:
        """An operating-system error that was survived, by what was attempted and by cause."""
        self.add(f"error.{where}.{errno.errorcode.get(error.errno or 0, type(error).__name__)}")

    def snapshot(self) -> dict[str, float]:
        with self._lock:
            often = {"miss": self._misses, "put": self._puts}
            return {**self._values, **{name: count for name, count in often.items() if count}}

    def after_fork(self) -> None:
        """In a child: nothing counted yet, and the lock may have been held by a thread that is gone."""
        self._lock = allocate_lock()
        self._values = {}
        self._misses = self._puts = 0
