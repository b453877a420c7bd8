"""Eviction: what goes when the store is full.

``lru``   exact: the entry whose last use, in any process, is longest ago.
``cost``  GreedyDual-Size-Frequency: the entry that would cost the least time to
          compile again per byte it holds, aged by what was evicted before it.

Reads record their use on the file alone. The index therefore knows, for every
entry, a last use that is never later than the true one. Taking the smallest,
asking the file, and putting it back where it belongs if it was used since gives
the exact order, and costs the same whether the store holds a thousand entries or
a million: the work is per entry evicted, not per entry held.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .index import Candidate, Index
    from .ledger import Ledger

POLICIES = ("cost", "lru")

#: Candidates are fetched this many at a time.
_BATCH = 64

#: Down to this share of the cap, so that a full store does not evict on every put…
LOW_WATERMARK = 0.9

#: …but at most this many entries beyond the room that is needed, and for at most so many seconds
#: (on a disk that discards, one unlink may take milliseconds), so that no put waits long.
MOST_AHEAD = 64
_AHEAD_SECONDS = 0.01

#: So many entries are looked at in one turn of the lock. After a whole store was read, every entry has to be
#: looked at before the least of them is known: that takes several turns, and others get theirs in between.
LOOKS = 500

#: Between two such turns, in seconds: others poll for the lock, and need a gap to find it free.
PAUSE = 2e-3


class Evicted:
    """What a round did."""

    __slots__ = ("bytes", "entries", "seconds")

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0
        #: Seconds of compiling that were given up.
        self.seconds = 0.0

    def as_dict(self) -> dict[str, float]:
        return {"entries": self.entries, "bytes": self.bytes, "seconds": self.seconds}

    def add(self, other: Evicted) -> None:
        self.entries += other.entries
        self.bytes += other.bytes
        self.seconds += other.seconds


class Room:
    """Makes room in one store, under the ledger's lock.

    ``probe`` gives the true last use of an entry from its file, None if there is
    no such file; ``unlink`` and ``unlink_blob`` remove files: True when done, None
    when there was none, False when it cannot be done. ``allowance`` is what an entry
    holds beyond what its owner put into it, where the cap is meant to count only that.
    """

    def __init__(
        self,
        index: Index,
        ledger: Ledger,
        policy: str,
        pinned: Collection[bytes],
        probe: Callable[[bytes], int | None],
        unlink: Callable[[bytes], bool | None],
        unlink_blob: Callable[[bytes], bool | None],
        allowance: int = 0,
    ) -> None:
        self.index = index
        self.ledger = ledger
        self.policy = policy
        self.pinned = pinned
        self.probe = probe
        self.unlink = unlink
        self.unlink_blob = unlink_blob
        self.allowance = allowance
        self.evicted = Evicted()
        #: Whether the last ``make`` or ``take_older`` stopped early: there is more to look at, in another turn.
        self.unfinished = False
        self._inflation = index.inflation
        # A file that cannot be removed (an immutable flag, another owner) would be chosen for ever.
        self._stuck: set[bytes] = set()
        self._stuck_blobs: set[bytes] = set()

    def make(self, ceiling: int, floor: int, *, ahead: int = MOST_AHEAD, looks: int = LOOKS) -> None:
        """Evict until at most ``ceiling`` bytes are held, then on to ``floor`` for a while.

        Nothing happens below ``ceiling``. Stops above it when all that is left is pinned,
        or after ``looks`` entries, and is ``unfinished`` then: what it learned is in the index.
        """
        self.unfinished = False
        if self.held() <= ceiling:
            return
        until = monotonic() + _AHEAD_SECONDS
        while self.held() > floor:
            self.collect_blobs()
            batch = [
                found
                for found in self.index.coldest(self.policy, _BATCH + self.avoided())
                if found.digest not in self.pinned and found.digest not in self._stuck
            ]
            if not batch:
                # All is gone that may go. If that is not enough, the total may have been too high since a crash.
                self.recount()
                return
            horizon = self._rank(batch[-1])
            heap = [(self._rank(found), found.digest, found) for found in batch]
            heapify(heap)
            while heap and self.held() > floor:
                if self.held() <= ceiling:
                    if not ahead or monotonic() > until:
                        return
                    ahead -= 1
                if not looks:
                    self.unfinished = self.held() > ceiling
                    return
                looks -= 1
                _, digest, found = heappop(heap)
                used = self.probe(digest)
                if used is not None and used > found.used:
                    self.index.touch(found, used, self._inflation)
                    if self._rank(found) <= horizon:
                        heappush(heap, (self._rank(found), digest, found))
                    continue
                if self.take(found, exists=used is not None) and found.weight > found.size:
                    self.collect_blobs()
        self.collect_blobs()

    def take_older(self, column: str, limit: int, *, looks: int = LOOKS) -> None:
        """Evict what was last used (or created) before ``limit``, in nanoseconds; ``unfinished`` after ``looks``."""
        self.unfinished = True
        while True:
            passed = self.avoided()
            batch = [
                found
                for found in self.index.older_than(column, limit, _BATCH + passed)
                if found.digest not in self.pinned and found.digest not in self._stuck
            ]
            if not batch:
                self.unfinished = False
                return
            for found in batch:
                if not looks:
                    return
                looks -= 1
                used = self.probe(found.digest)
                if column == "used" and used is not None and used >= limit:
                    self.index.touch(found, used, self._inflation)
                else:
                    self.take(found, exists=used is not None)

    def avoided(self) -> int:
        """How many of the entries that a query finds may be out of bounds."""
        return len(self.pinned) + len(self._stuck)

    def recount(self) -> None:
        """Add up what the index holds: exact wherever it says what is on the disk."""
        self.ledger.entries, self.ledger.bytes = self.index.totals()

    def held(self) -> int:
        """The bytes that count against the cap."""
        return self.ledger.bytes - self.ledger.entries * self.allowance

    def done(self) -> Evicted:
        """Note the clock in the index; call before it is committed."""
        self.index.inflation = self._inflation
        return self.evicted

    def take(self, found: Candidate, *, exists: bool = True) -> bool:
        """Evict one entry; one whose file is gone is only struck off. Whether that could be done."""
        if exists:
            if self.unlink(found.digest) is False:
                self._stuck.add(found.digest)
                return False
            self.evicted.entries += 1
            self.evicted.bytes += found.size
            self.evicted.seconds += found.cost
            if self.policy == "cost":
                self._inflation = max(self._inflation, found.worth)
        self.index.remove(found.digest)
        self.ledger.entries -= 1
        self.ledger.bytes -= found.size
        return True

    def collect_blobs(self) -> None:
        """Remove blobs that no entry refers to.

        Safe because whoever puts an entry names its blobs and records the entry in
        one turn of the lock we hold: what is loose now, nobody is about to use.
        """
        while loose := [
            blob for blob in self.index.loose_blobs(_BATCH + len(self._stuck_blobs)) if blob[0] not in self._stuck_blobs
        ]:
            for address, size in loose:
                removed = self.unlink_blob(address)
                if removed is False:
                    self._stuck_blobs.add(address)
                    continue
                if removed:
                    self.evicted.bytes += size
                    self.ledger.bytes -= size
                self.index.forget_blob(address)

    def _rank(self, found: Candidate) -> tuple[float, int]:
        return (0.0, found.used) if self.policy == "lru" else (found.worth, found.used)
