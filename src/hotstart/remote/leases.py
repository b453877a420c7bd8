"""Leases on a real remote: carries out what ``flight`` says, and keeps alive what this process holds.

    v1/SCOPE/leases/DIGEST/000001     create-only; the content is for people

They live in the last remote of the chain that can be written, the one all hosts share.
A lease is no promise: whoever holds none compiles all the same.
"""

from __future__ import annotations

import os
import random
import threading
import time

from . import flight
from .contract import RemoteError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..store.entry import Entry
    from .guard import Guarded
    from .tier import RemoteTier


class Lease:
    """A compile that others wait for. ``release`` it once its result is queued, or when it failed."""

    __slots__ = ("_leases", "_owner", "digest", "number", "renewed")

    def __init__(self, leases: Leases, digest: str, number: int) -> None:
        self._leases = leases
        self._owner = os.getpid()
        self.digest = digest
        self.number = number
        self.renewed = time.monotonic()

    def release(self) -> None:
        """Remove it, behind whatever is queued to be published: those who wait then find the entry, or nothing."""
        if self._owner == os.getpid():
            self._leases.release(self)


class Leases:
    """All leases of one process on one remote."""

    def __init__(self, tier: RemoteTier, lease: float = flight.LEASE) -> None:
        self._tier = tier
        self.lease = lease
        self._start()

    def _start(self) -> None:
        self._held: dict[str, Lease] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def seek(self, digest: str, patience: float) -> Entry | Lease | None:
        """The entry, once another host has made it; or a lease: compile; or None: compile, nobody waits for it."""
        remote = self._home()
        if remote is None or not self._tier.writable:
            return None
        seeker = flight.Seeker(time.monotonic(), random.random, lease=self.lease, patience=patience)
        entry: Entry | None = None
        waited = False
        while seeker.step not in (flight.LEAD, flight.ALONE, flight.DONE):
            try:
                if seeker.step == flight.PAUSE:
                    waited = True
                    time.sleep(seeker.number)
                    seeker.told_pause(time.monotonic())
                elif seeker.step == flight.LOOK:
                    entry, doubt = self._tier.find(digest)
                    if entry is None and doubt is not None:
                        raise doubt
                    seeker.told_look(time.monotonic(), entry is not None)
                else:
                    self._ask(remote, digest, seeker)
            except RemoteError as error:
                if error.cause == "throttled":
                    seeker.told_busy(time.monotonic())
                else:
                    seeker.failed(error.cause)
        if seeker.step == flight.LEAD:
            if seeker.created > 1:
                self._tier.counters.add("remote.flight.taken_over")
            return self._hold(digest, seeker.created)
        if seeker.created:
            self._remove(remote, digest, seeker.created)
        if entry is None:
            self._tier.counters.add(f"remote.flight.alone_{seeker.why}")
        elif waited:
            self._tier.counters.add("remote.flight.waited")
        return entry

    def _ask(self, remote: Guarded, digest: str, seeker: flight.Seeker) -> None:
        number = int(seeker.number)
        if seeker.step == flight.CREATE:
            data = f"{self.lease:.0f} s\n".encode()
            created = remote.put(self._name(digest, number), data)
            seeker.told_create(time.monotonic(), created)
        elif seeker.step == flight.SURVEY:
            prefix = f"{self._prefix(digest)}/"
            found = [_number(item.name) for item in remote.list(prefix)]
            seeker.told_survey(time.monotonic(), max(found, default=0))
        else:
            names = [self._name(digest, number), self._name(digest, number + 1)]
            there = remote.get_many(names, 64)
            seeker.told_peek(time.monotonic(), names[0] in there, names[1] in there)

    # -- held ------------------------------------------------------------------

    def _hold(self, digest: str, number: int) -> Lease:
        lease = Lease(self, digest, number)
        with self._changed:
            self._held[digest] = lease
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew, name="hotstart leases", daemon=True)
                self._thread.start()
        return lease

    def _renew(self) -> None:
        """While something is held: create the next number of each before its time is up. Ends when nothing is."""
        pause = flight.renewal_after(self.lease)
        while True:
            with self._changed:
                if not self._held:
                    self._changed.wait(pause)
                if not self._held:
                    self._thread = None
                    return
                due = min(lease.renewed for lease in self._held.values()) + pause
                self._changed.wait(max(0.0, due - time.monotonic()))
                now = time.monotonic()
                late = [lease for lease in self._held.values() if lease.renewed + pause <= now]
            for lease in late:
                lease.renewed = time.monotonic()
                remote = self._home()
                try:
                    # False: somebody took us for dead. We go on: whoever publishes first is right.
                    if remote is not None and remote.put(self._name(lease.digest, lease.number + 1), b"renewed\n"):
                        lease.number += 1
                except RemoteError:
                    pass  # counted by its guard; at worst another host compiles it too

    def release(self, lease: Lease) -> None:
        with self._changed:
            if self._held.get(lease.digest) is lease:
                del self._held[lease.digest]
            self._changed.notify_all()
        remote = self._home()
        if remote is not None:
            self._tier.queue.add(lambda: self._remove(remote, lease.digest, lease.number))

    def _remove(self, remote: Guarded, digest: str, highest: int) -> None:
        try:
            remote.delete([self._name(digest, number) for number in range(1, highest + 1)])
        except RemoteError:
            pass  # counted by its guard; others see it expire

    def after_fork(self) -> None:
        """In a child: nothing is held here."""
        self._start()

    def _home(self) -> Guarded | None:
        return next((remote for remote in reversed(self._tier.remotes) if remote.is_writable()), None)

    def _prefix(self, digest: str) -> str:
        return f"v1/{self._tier.scope}/leases/{digest}"

    def _name(self, digest: str, number: int) -> str:
        return f"{self._prefix(digest)}/{number:06}"


def _number(name: str) -> int:
    last = name.rpartition("/")[2]
    return int(last) if last.isdigit() else 0
