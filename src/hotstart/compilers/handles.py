"""``HandleCache``: compiled launchers and their like, kept in memory and nowhere else.

For what cannot be written to disk: a loaded module, a launcher, a function that a
kernel language made. Bounded, one build per key, and empty again after a fork.

Waiting differs from ``store.flight``. Processes cannot see whom another waits for,
so there an order of keys keeps circles from forming, and a thread that may not wait
builds a second time. Threads of one process can be seen: here a thread that is about
to wait follows the waits of those ahead of it, and builds on its own only when they
lead back to itself.
"""

from __future__ import annotations

import os
import threading
from _thread import allocate_lock, get_ident
from collections import OrderedDict
from time import monotonic
from weakref import WeakSet, WeakValueDictionary

from ..errors import UsageError
from ..log import say
from ..store.memory import MISSING
from .tokens import token_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

#: How many handles a cache holds unless told otherwise: more than the kernels of a large model.
DEFAULT_ENTRIES = 256

#: How long anybody waits for another thread's build before building on its own.
DEFAULT_WAIT = 900.0


class _Flight:
    """One build under way. ``handle`` stays MISSING when it was interrupted."""

    __slots__ = ("done", "error", "handle", "leader")

    def __init__(self, leader: int) -> None:
        self.done = threading.Event()
        self.leader = leader
        self.handle: Any = MISSING
        self.error: Exception | None = None


class HandleCache:
    """Objects by key, at most ``max_entries`` of them, least recently used first out; 0 turns it off.

    A key is a ``hotstart.Key``, or plain data, functions and tensors in tuples, lists
    and dicts (``compilers.tokens`` says what counts of each). ``True``, ``1`` and ``1.0``
    are three keys, ``(1,)`` and ``[1]`` two; what has no form raises UncacheableError.
    Every object is a value, None too, and what was put is what is returned.

    ``on_evict(handle)`` is called once for each handle that leaves, in the thread
    that made it leave and without any lock held: to unload a module, say. Others may
    still be using it; without ``on_evict`` a handle lives until its last user lets go,
    and one that was evicted but is still alive somewhere is found again.

    ``wait`` is the longest anybody waits for another thread's build. Thread-safe. In a
    forked child it is empty: CUDA modules do not survive a fork, so the inherited
    handles are neither served nor closed nor freed there.
    """

    __slots__ = ("__weakref__", "_alive", "_counts", "_flying", "_lock", "_on_evict", "_slots", "max_entries", "wait")

    def __init__(
        self,
        max_entries: int = DEFAULT_ENTRIES,
        *,
        on_evict: Callable[[Any], object] | None = None,
        wait: float = DEFAULT_WAIT,
    ) -> None:
        if type(max_entries) is not int or max_entries < 0:
            raise UsageError(f"max_entries is a count, 0 turns the cache off; not {max_entries!r}")
        if not wait >= 0:
            raise UsageError(f"wait is a number of seconds, not {wait!r}")
        self.max_entries = max_entries
        self.wait = wait
        self._on_evict = on_evict
        self._lock = allocate_lock()
        self._reset()
        _caches.add(self)

    def _reset(self) -> None:
        self._slots: OrderedDict[str, Any] = OrderedDict()
        #: Handles that were evicted, as long as somebody else keeps them.
        self._alive: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self._flying: dict[str, _Flight] = {}
        self._counts = dict.fromkeys(("hits", "built", "waited", "failed", "evicted", "uncacheable", "evict_errors"), 0)

    # -- the three ----------------------------------------------------------------

    def get(self, key: object, default: Any = None) -> Any:
        """The handle, or ``default``."""
        return self._look(token_of(key), default)

    def put(self, key: object, handle: Any) -> bool:
        """Keep ``handle``, in place of the one there was; False when the cache is off."""
        if not self.max_entries:
            return False
        token = token_of(key)
        with self._lock:
            gone = self._take(token, besides=handle)
            gone += self._insert(token, handle)
        self._let_go(gone)
        return True

    def get_or_build(self, key: object, build: Callable[[], Any]) -> Any:
        """The handle of ``key``; when there is none ``build()`` is called, once, and its result kept.

        Threads that ask for the same key meanwhile wait for that one build. If it
        raises, the exception reaches all of them and nothing is kept. A build that
        asks for its own key again, or that would have to wait for a thread that waits
        for it, builds; so does whoever has waited ``wait`` seconds.
        """
        return self._find(token_of(key), build)

    def _find(self, token: str, build: Callable[[], Any]) -> Any:
        handle = self._look(token, MISSING)
        return handle if handle is not MISSING else self._build(token, build)

    def _look(self, token: str, default: Any) -> Any:
        gone: list[Any] = []
        with self._lock:
            handle = self._slots.get(token, MISSING)
            if handle is not MISSING:
                self._slots.move_to_end(token)
            elif token in self._alive:
                handle = self._alive.pop(token, MISSING)
                if handle is not MISSING:
                    gone = self._insert(token, handle)
            if handle is MISSING:
                return default
            self._counts["hits"] += 1
        if gone:
            self._let_go(gone)
        return handle

    # -- building -------------------------------------------------------------------

    def _build(self, token: str, build: Callable[[], Any]) -> Any:
        if not self.max_entries:
            return self._call(build)
        me = get_ident()
        deadline = monotonic() + self.wait
        while True:
            with self._lock:
                handle = self._slots.get(token, MISSING)
                if handle is not MISSING:  # landed since we looked
                    self._counts["hits"] += 1
                    return handle
                flight = self._flying.get(token)
                if flight is None:
                    flight = self._flying[token] = _Flight(me)
                    break
            if not _may_wait(flight, me):
                return self._call(build)  # not kept: the one that leads is alive, and its handle will be
            if not _wait(flight, me, deadline - monotonic()):
                return self._overtake(token, build)
            if flight.error is not None:
                raise flight.error
            if flight.handle is not MISSING:
                self._count("waited")
                return flight.handle
            # The leader was interrupted (Ctrl-C): somebody else leads now.
        return self._lead(token, flight, build)

    def _lead(self, token: str, flight: _Flight, build: Callable[[], Any]) -> Any:
        gone: list[Any] = []
        try:
            flight.handle = self._call(build)
        except Exception as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                # Neither ``clear`` nor a fork nor a faster thread came between.
                if self._flying.get(token) is flight:
                    del self._flying[token]
                    if flight.handle is not MISSING and token not in self._slots:
                        gone = self._insert(token, flight.handle)
            flight.done.set()
            self._let_go(gone)
        return flight.handle

    def _overtake(self, token: str, build: Callable[[], Any]) -> Any:
        """The one that leads seems to hang; what is built here serves the next ones."""
        handle = self._call(build)
        with self._lock:
            gone = self._insert(token, handle) if token not in self._slots else []
        self._let_go(gone)
        return handle

    def _call(self, build: Callable[[], Any]) -> Any:
        try:
            handle = build()
        except BaseException:
            self._count("failed")
            raise
        self._count("built")
        return handle

    # -- what stays and what goes -----------------------------------------------------

    def _insert(self, token: str, handle: Any) -> list[Any]:
        """Under the lock. Returns what had to leave, to be let go without it: a destructor may call us."""
        self._slots[token] = handle
        gone = []
        while len(self._slots) > self.max_entries:
            oldest, leaving = self._slots.popitem(last=False)
            self._counts["evicted"] += 1
            gone.append(leaving)
            if self._on_evict is None:
                try:
                    self._alive[oldest] = leaving
                except TypeError:
                    pass  # it takes no weak references; then it is not found again
        return gone

    def _take(self, token: str, besides: Any = MISSING) -> list[Any]:
        """Under the lock: forget the key, and a build of it that is under way. Returns what left."""
        self._flying.pop(token, None)
        self._alive.pop(token, None)
        handle = self._slots.pop(token, MISSING)
        return [] if handle is MISSING or handle is besides else [handle]

    def _let_go(self, gone: list[Any]) -> None:
        on_evict = self._on_evict
        if on_evict is None:
            return
        for handle in gone:
            try:
                on_evict(handle)
            except Exception as error:
                self._count("evict_errors")
                say("warning", f"on_evict of a handle failed: {error!r}", once=f"on_evict {type(error).__name__}")

    def delete(self, key: object) -> bool:
        """Forget the handle of ``key``; whether there was one. A build under way is not kept either."""
        token = token_of(key)
        with self._lock:
            there = token in self._slots
            gone = self._take(token)
        self._let_go(gone)
        return there

    def clear(self) -> None:
        """Forget everything, builds under way included: those finish, and are not kept."""
        with self._lock:
            gone = list(self._slots.values())
            self._slots = OrderedDict()
            self._alive = WeakValueDictionary()
            self._flying = {}
        self._let_go(gone)

    close = clear

    def stats(self) -> dict[str, int]:
        """Hits, builds, waits for another thread's build, failed builds, evictions, and what went wrong."""
        with self._lock:
            return {**self._counts, "entries": len(self._slots), "max_entries": self.max_entries}

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: object) -> bool:
        return token_of(key) in self._slots

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<HandleCache {len(self._slots)} of {self.max_entries}>"

    def _after_fork(self) -> None:
        # Freeing an inherited handle here would unload a module of a context this process does not have.
        _inherited.append((self._slots, self._alive, self._flying))
        self._lock = allocate_lock()
        self._reset()


# -- waiting ------------------------------------------------------------------------

#: Which flight each waiting thread waits for, over all caches of this process.
_waiting: dict[int, _Flight] = {}
_waiting_lock = allocate_lock()


def _may_wait(flight: _Flight, me: int) -> bool:
    """Enter ``me`` as waiting for ``flight``, unless whoever leads it waits, however indirectly, for ``me``."""
    with _waiting_lock:
        ahead: _Flight | None = flight
        while ahead is not None and not ahead.done.is_set():
            if ahead.leader == me:
                return False
            ahead = _waiting.get(ahead.leader)
        _waiting[me] = flight
        return True


def _wait(flight: _Flight, me: int, seconds: float) -> bool:
    try:
        return flight.done.wait(max(0.0, seconds))
    finally:
        with _waiting_lock:
            _waiting.pop(me, None)


# -- forking ------------------------------------------------------------------------

_caches: WeakSet[HandleCache] = WeakSet()
#: What a parent's caches held. Kept for as long as this process runs.
_inherited: list[object] = []


def _after_fork_in_child() -> None:
    global _waiting, _waiting_lock
    _waiting, _waiting_lock = {}, allocate_lock()
    for cache in list(_caches):
        cache._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
