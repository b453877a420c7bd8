"""``Memory``: the nearest tier. Bounded, least recently used first out, no copies."""

from __future__ import annotations

from _thread import allocate_lock
from collections import OrderedDict
from time import time_ns

from ..errors import UsageError
from .sizes import parse_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable
    from typing import Any

#: What ``get`` returns for what is not there: ``None`` and empty values are values.
MISSING: Any = object()

#: A hit in memory is told to the disk tier at most this often per entry, so that a
#: hot loop does not turn into system calls. The process's own evictions always see
#: the exact time (``flush``); other processes see it at most this much late.
_TELL_EVERY = 1_000_000_000


class Memory:
    """Values by key, at most ``max_bytes`` and ``max_entries`` of them; 0 turns it off.

    Thread-safe. What was put is what is returned, the very object. ``told`` is
    called with (key, nanoseconds) when a use should become known to others.
    """

    __slots__ = ("_bytes", "_lock", "_slots", "_told", "evicted", "hits", "max_bytes", "max_entries", "saved")

    def __init__(
        self,
        max_bytes: int | str = "128MiB",
        max_entries: int = 4096,
        told: Callable[[str, int], None] | None = None,
    ) -> None:
        self.max_bytes = parse_size(max_bytes, "memory", zero=True)
        if type(max_entries) is not int or max_entries < 0:
            raise UsageError(f"max_entries is a count, 0 turns the memory tier off; not {max_entries!r}")
        self.max_entries = max_entries
        # key → [value, size, last use, last use that was told, seconds a hit saves, when it expires or 0]
        self._slots: OrderedDict[str, list[Any]] = OrderedDict()
        self._bytes = 0
        self._told = told
        self._lock: LockType = allocate_lock()
        self.hits = self.evicted = 0
        self.saved = 0.0

    def get(self, key: str, default: Any = MISSING) -> Any:
        """The value, or ``default`` (``MISSING`` unless given)."""
        now = time_ns()
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                return default
            if slot[5] and now > slot[5]:
                self._drop(key)
                return default
            self._slots.move_to_end(key)
            self.hits += 1
            self.saved += slot[4]
            slot[2] = now
            if now - slot[3] < _TELL_EVERY:
                return slot[0]
            slot[3] = now
        if self._told is not None:
            self._told(key, now)
        return slot[0]

    def put(self, key: str, value: Any, size: int, saves: float = 0.0, expires: int = 0) -> bool:
        """Keep ``value``, until ``expires`` (in nanoseconds) unless that is 0.

        False when it is larger than the whole tier: nothing is evicted for it but what
        it replaces, which must not be served any more.
        """
        if size > self.max_bytes or not self.max_entries or not self.max_bytes:
            self.delete(key)
            return False
        now = time_ns()
        late = []
        with self._lock:
            self._drop(key)
            self._slots[key] = [value, size, now, now, saves, expires]
            self._bytes += size
            while self._bytes > self.max_bytes or len(self._slots) > self.max_entries:
                oldest, slot = self._slots.popitem(last=False)
                self._bytes -= slot[1]
                self.evicted += 1
                if slot[2] > slot[3]:
                    late.append((oldest, slot[2]))
        if self._told is not None:
            for oldest, used in late:
                self._told(oldest, used)
        return True

    def delete(self, key: str) -> bool:
        with self._lock:
            return self._drop(key)

    def clear(self) -> None:
        with self._lock:
            self._slots.clear()
            self._bytes = 0

    def flush(self) -> None:
        """Tell every use that was not told yet: before this process evicts, and at the end."""
        if self._told is None:
            return
        with self._lock:
            late = [(key, slot) for key, slot in self._slots.items() if slot[2] > slot[3]]
            for _, slot in late:
                slot[3] = slot[2]
        for key, slot in late:
            self._told(key, slot[3])

    @property
    def bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: str) -> bool:
        return key in self._slots

    def after_fork(self) -> None:
        """In a child: a thread that is gone may have held the lock, or been halfway through a change."""
        self._lock = allocate_lock()
        self._slots = OrderedDict()
        self._bytes = 0
        self.hits = self.evicted = 0
        self.saved = 0.0

    def _drop(self, key: str) -> bool:
        slot = self._slots.pop(key, None)
        if slot is None:
            return False
        self._bytes -= slot[1]
        return True
