"""``Sharing``: what a ``Cache`` with a remote holds. Opens the tier when the local store first has no answer.

So a start that finds everything here imports no client, reads no key and asks nobody.
Settings that make no sense are said in one line when that happens, and local caching goes on.
"""

from __future__ import annotations

import os
import time
from _thread import allocate_lock
from weakref import finalize

from ..errors import HotstartError
from ..log import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..keys.key import Key
    from ..store.counters import Counters
    from ..store.entry import BytesLike, Draft, Entry
    from ..store.flight import Flights, Keep, Pending
    from .leases import Lease
    from .tier import RemoteTier


class Sharing:
    """The remote side of one cache. No method raises for what a remote does."""

    def __init__(self, counters: Counters, path: str | None, settings: dict[str, Any]) -> None:
        """``path`` is that of the store, ``settings`` are arguments of ``open_tier``."""
        self._counters = counters
        self._path = path or ""
        self._settings = settings
        self._tier: RemoteTier | None = None
        self._off = False
        self._starting = allocate_lock()

    @property
    def tier(self) -> RemoteTier | None:
        """None when the settings cannot be used; that was said."""
        if self._tier is None and not self._off:
            with self._starting:
                if self._tier is None and not self._off:
                    self._open()
        return self._tier

    def _open(self) -> None:
        from .tier import open_tier

        # Where the store is not configured by hand it lies in the home, so this is the home either way.
        home = os.path.expanduser(os.environ.get("HOTSTART_HOME", "")) or os.path.dirname(os.path.abspath(self._path))
        state = f"{home}/remote" if self._path else ""
        try:
            self._tier = open_tier(counters=self._counters, state=state, **self._settings)
        except HotstartError as error:
            self._off = True
            say("warning", f"{error}; the remote is not used", once="remote")

    def read(self, digest: str) -> Entry | None:
        tier = self.tier
        return tier.read(digest) if tier is not None else None

    def offer(self, draft: Draft) -> None:
        """Publish what was made here, in the background."""
        tier = self.tier
        if tier is not None:
            tier.offer(draft.entry("compiled"))

    def seek(self, digest: str, patience: float) -> tuple[Entry | None, Lease | None]:
        """The entry, if another host makes it meanwhile; or a lease, to be released when the compile is over."""
        tier = self.tier
        found = tier.leases.seek(digest, patience) if tier is not None else None
        if found is None:
            return None, None
        from .leases import Lease

        return (None, found) if isinstance(found, Lease) else (found, None)

    def begin(
        self,
        flights: Flights,
        key: Key,
        look: Callable[[str], Entry | None],
        keep: Keep,
        promote: Callable[[Entry], None],
        deadline: float,
    ) -> Entry | Pending:
        """``store.flight.begin`` with a lease for as long as the compile is under way, however it ends."""
        leases: list[Lease] = []

        def release() -> None:
            while leases:
                leases.pop().release()

        def look_further(digest: str) -> Entry | None:
            entry = look(digest)
            if entry is None and flights.may_wait(digest):
                entry, lease = self.seek(digest, deadline - time.monotonic())
                if lease is not None:
                    leases.append(lease)
                elif entry is not None:
                    promote(entry)
            return entry

        def keep_and_release(
            key: Key, artifacts: Mapping[str, BytesLike], meta: Mapping[str, object] | None, cost: float
        ) -> tuple[Entry, bool]:
            try:
                return keep(key, artifacts, meta, cost)
            finally:
                release()

        from ..store.flight import begin

        found = begin(flights, key, look_further, keep_and_release, deadline)
        if leases:
            finalize(found, release)  # abandoned, or dropped because an exception went past
        return found

    def add_to(self, statistics: dict[str, Any]) -> dict[str, Any]:
        """``statistics`` with what the remote did."""
        tier = self._tier
        statistics["hits"]["remote"] = tier.hits if tier is not None else 0
        statistics["seconds_saved"] += tier.saved if tier is not None else 0.0
        statistics["remote"] = tier.statistics() if tier is not None else {}
        return statistics

    def close(self) -> None:
        if self._tier is not None:
            self._tier.close()

    def after_fork(self) -> None:
        self._starting = allocate_lock()
        if self._tier is not None:
            self._tier.after_fork()
