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


class _Slot:
    """One value. An object and not a list: one place in memory to fetch instead of two."""

    __slots__ = ("expires", "hits", "saves", "size", "told", "used", "value")

    def __init__(self, value: Any, size: int, now: int, saves: float, expires: int) -> None:
        self.value = value
        self.size = size
        #: Last use, and the last use that was told.
        self.used = self.told = now
        #: Seconds a hit saves, and how many there were: multiplied when somebody asks, not on every hit.
        self.saves = saves
        self.hits = 0
        #: In nanoseconds, or 0.
        self.expires = expires


class Memory:
    """Values by key, at most ``max_bytes`` and ``max_entries`` of them; 0 turns it off.

    Thread-safe. What was put is what is returned, the very object. ``told`` is
    called with (key, nanoseconds) when a use should become known to others.
    """

    __slots__ = ("_bytes", "_lock", "_slots", "_told", "evicted", "max_bytes", "max_entries", "past_hits", "past_saved")

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
        self._slots: OrderedDict[str, _Slot] = OrderedDict()
        self._bytes = 0
        self._told = told
        self._lock: LockType = allocate_lock()
        self.past_hits = self.evicted = 0
        self.past_saved = 0.0

    def get(self, key: str, default: Any = MISSING) -> Any:
        """The value, or ``default`` (``MISSING`` unless given)."""
        slots = self._slots
        with self._lock:
            slot = slots.get(key)
            if slot is None:
                return default
            now = time_ns()
            if slot.expires and now > slot.expires:
                self._drop(key)
                return default
            slots.move_to_end(key)
            slot.hits += 1
            slot.used = now
            if now - slot.told < _TELL_EVERY:
                return slot.value
            slot.told = now
        if self._told is not None:
            self._told(key, now)
        return slot.value

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
            self._slots[key] = _Slot(value, size, now, saves, expires)
            self._bytes += size
            while self._bytes > self.max_bytes or len(self._slots) > self.max_entries:
                oldest, slot = self._slots.popitem(last=False)
                self._leave(slot)
                self.evicted += 1
                if slot.used > slot.told:
                    late.append((oldest, slot.used))
        if self._told is not None:
            for oldest, used in late:
                self._told(oldest, used)
        return True

    def delete(self, key: str) -> bool:
        with self._lock:
            return self._drop(key)

    def clear(self) -> None:
        with self._lock:
            for slot in self._slots.values():
                self._leave(slot)
            self._slots.clear()

    def flush(self) -> None:
        """Tell every use that was not told yet: before this process evicts, and at the end."""
        if self._told is None:
            return
        with self._lock:
            late = [(key, slot.used) for key, slot in self._slots.items() if slot.used > slot.told]
            for key, used in late:
                self._slots[key].told = used
        for key, used in late:
            self._told(key, used)

    @property
    def hits(self) -> int:
        with self._lock:
            return self.past_hits + sum(slot.hits for slot in self._slots.values())

    @property
    def saved(self) -> float:
        """Seconds of compiling that hits saved."""
        with self._lock:
            return self.past_saved + sum(slot.hits * slot.saves for slot in self._slots.values())

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
        self.past_hits = self.evicted = 0
        self.past_saved = 0.0

    def _drop(self, key: str) -> bool:
        slot = self._slots.pop(key, None)
        if slot is None:
            return False
        self._leave(slot)
        return True

    def _leave(self, slot: _Slot) -> None:
        """Its bytes are free, its hits go on counting."""
        self._bytes -= slot.size
        self.past_hits += slot.hits
        self.past_saved += slot.hits * slot.saves
