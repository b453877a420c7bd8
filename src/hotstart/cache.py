"""``Cache``: the one door. Tiers composed; get, put, get_or_compile."""

from __future__ import annotations

import os
import time
from _thread import allocate_lock

from .drafting import Compiled, draft_of
from .errors import UsageError
from .keys.key import Key
from .lifetime import keep_track
from .store.counters import Counters
from .store.entry import FOREIGN, Draft, Entry
from .store.local import LocalStore
from .store.memory import MISSING, Memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, NoReturn, Self

    from .remote.sharing import Sharing
    from .store.entry import BytesLike
    from .store.explain import Explanation
    from .store.flight import Flight, Flights, Pending
    from .trust.admission import Admission

#: How long anybody waits for somebody else's compile before compiling on its own.
DEFAULT_WAIT = 900.0


class Cache:
    """Entries in memory and on disk, with read-only layers under them.

    ``path``       directory of the store; None for a cache in memory alone
    ``max_size``   the one budget on disk, over all processes: ``"10GiB"``
    ``memory``     bytes of the memory tier; 0 turns it off
    ``policy``     ``"cost"`` keeps what is dear to compile again, ``"lru"`` what was used last
    ``ttl``        seconds after which an entry no longer counts
    ``under``      directories of stores to read from when this one has no entry; a hit is promoted
    ``read_only``  never write; also no recency
    ``durable``    fsync what is put, for those who publish from it
    ``wait``       the longest anybody waits for another's compile
    ``remote``     URL of a remote, or several separated by commas; docs/sharing.md has this and the next:
                   ``scope`` to write and others to read, ``trust`` the file of trusted keys,
                   ``signing_key`` the file of the key to sign with, ``allow_unsigned`` to run anybody's entries

    Only misuse raises. Whatever the disk does, ``get`` returns an entry that was
    checked or None, ``put`` says whether it stored, ``get_or_compile`` returns what
    ``compile`` made. Safe for threads, processes, fork and spawn.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        max_size: int | str = "10GiB",
        memory: int | str = "128MiB",
        policy: str = "cost",
        ttl: float | None = None,
        under: Iterable[str | os.PathLike[str]] = (),
        read_only: bool = False,
        durable: bool = False,
        wait: float = DEFAULT_WAIT,
        remote: str = "",
        scope: str = "main",
        trust: str = "",
        signing_key: str = "",
        allow_unsigned: bool = False,
    ) -> None:
        if isinstance(under, (str, os.PathLike)):
            raise UsageError(f"under is a list of directories, not one: write under=[{os.fspath(under)!r}]")
        layers = [os.fspath(layer) for layer in under]
        self._arguments: dict[str, Any] = {
            "max_size": max_size, "memory": memory, "policy": policy, "ttl": ttl, "under": layers,
            "read_only": read_only, "durable": durable, "wait": wait, "remote": remote, "scope": scope,
            "trust": trust, "signing_key": signing_key, "allow_unsigned": allow_unsigned,
        }  # fmt: skip
        self.path = os.fspath(path) if path is not None else None
        self.wait = wait
        #: What ``stats`` shows; parts of hotstart that use the cache count here too.
        self.counters = Counters()
        self._disk = (
            LocalStore(
                self.path, self.counters, max_size=max_size, policy=policy, ttl=ttl, read_only=read_only,
                durable=durable,
            ) if self.path is not None else None
        )  # fmt: skip
        self._layers = [LocalStore(layer, self.counters, ttl=ttl, read_only=True, tier="layer") for layer in layers]
        self._memory = Memory(memory, told=self._disk.touch if self._disk else None)
        self._recall = self._memory.get if self._memory.max_bytes else None
        if self._disk is not None:
            self._disk.upkeep.before_eviction = self._memory.flush
        self._ttl_ns = int(ttl * 1e9) if ttl is not None else 0
        self._flights: Flights | None = None
        self._starting = allocate_lock()
        self._admission: Admission | None = None
        self._sharing: Sharing | None = None
        if remote:
            from .remote.sharing import Sharing

            names = ("remote", "scope", "trust", "signing_key", "allow_unsigned", "read_only")
            self._sharing = Sharing(self.counters, self.path, {name: self._arguments[name] for name in names})
        keep_track(self)

    # -- the three --------------------------------------------------------------

    def get(self, key: Key) -> Entry | None:
        """The entry, checked, or None. Never an exception for a bad entry."""
        if not isinstance(key, Key):
            _refuse(key)
        if self._recall is not None:
            entry = self._recall(key.digest)
            if entry is not MISSING:
                return entry  # type: ignore[no-any-return]  # the memory tier holds whatever is put into it: here entries
        entry = self._get_far(key.digest)
        if entry is None:
            self.counters.miss()
        return entry

    def _get_far(self, digest: str) -> Entry | None:
        """From disk or a layer, filling the nearer tiers."""
        if self._disk is not None:
            entry = self._disk.read(digest)
            # From the end, where provenance is: half of what ``in`` takes.
            if entry is not None and (entry.about().rfind(FOREIGN) < 0 or self.admits(entry)):
                if self._memory.max_bytes:
                    self._remember(entry.at("memory"))
                return entry
        for layer in self._layers:
            entry = layer.read(digest)
            if entry is not None and self.admits(entry):
                self._promote(entry)
                return entry
        if self._sharing is not None:
            entry = self._sharing.read(digest)
            if entry is not None:
                self._promote(entry)
            return entry
        return None

    def admits(self, entry: Entry) -> bool:
        """Whether a stored entry may be served: made here, or signed by who is trusted now for a scope that is read."""
        origin = entry.origin()
        if origin is None:
            return True
        if self._admission is None:
            from .trust.admission import Admission

            self._admission = Admission(self._arguments, self.counters)
        return self._admission.admits(origin)

    def put(
        self,
        key: Key,
        artifacts: Mapping[str, BytesLike],
        *,
        meta: Mapping[str, object] | None = None,
        cost: float = 0.0,
    ) -> bool:
        """Store an entry; whether it is now in the store for others to find.

        ``cost`` is the seconds the compile took: what a hit saves, and what eviction
        weighs. False when it was refused (larger than the budget, read-only) or could
        not be written; ``stats()`` says which. Raises only for misuse.
        """
        if not isinstance(key, Key):
            _refuse(key)
        return self._store(draft_of(key, artifacts, meta, cost))

    def get_or_compile(
        self,
        key: Key,
        compile: Callable[[], Mapping[str, BytesLike] | Compiled],
        *,
        meta: Mapping[str, object] | None = None,
    ) -> Entry:
        """The entry of ``key``; on a miss ``compile()`` is called, once, and its result stored.

        Threads and processes that ask for the same key meanwhile wait for that one
        compile. If it raises, the exception reaches every waiter of this process and
        nothing is stored. ``entry.tier`` is ``"compiled"`` when this call compiled.
        """
        entry = self.get(key)
        if entry is not None:
            return entry
        flights = self.flights()
        digest = key.digest
        deadline = time.monotonic() + self.wait
        while digest not in flights.held():
            flight, leading = flights.join(digest)
            if leading:
                return self._lead(key, compile, meta, flights, flight, deadline)
            if not flights.may_wait(digest) or not flight.done.wait(deadline - time.monotonic()):
                break
            if flight.error is not None:
                raise flight.error
            if flight.entry is not None:
                self.counters.add("hit.flight")
                self.counters.add("seconds_saved", flight.entry.cost)
                return flight.entry
            # The leader was interrupted (Ctrl-C, a dying thread): somebody else leads now.
        return self._compile(key, compile, meta)[0]

    def begin(self, key: Key, *, wait: float | None = None) -> Entry | Pending:
        """``get_or_compile`` for a compile that begins in one call and ends in another.

        The entry, when there is one or another thread or process completes it within
        ``wait`` seconds (``self.wait`` unless given). Otherwise a ``Pending``, for which others
        wait in their turn: the caller compiles, then calls its ``finish`` or ``abandon``.
        """
        entry = self.get(key)
        if entry is not None:
            return entry
        deadline = time.monotonic() + (self.wait if wait is None else wait)
        if self._sharing is not None:
            flights = self.flights()
            return self._sharing.begin(flights, key, self._look_again, self._keep, self._promote, deadline)
        from .store.flight import begin

        return begin(self.flights(), key, self._look_again, self._keep, deadline)

    # -- compiling --------------------------------------------------------------

    def _lead(
        self,
        key: Key,
        compile: Callable[[], Mapping[str, BytesLike] | Compiled],
        meta: Mapping[str, object] | None,
        flights: Flights,
        flight: Flight,
        deadline: float,
    ) -> Entry:
        """Compile for all threads of this process, and under the lock file for all processes."""
        held = flights.held()
        lock = lease = None
        stored = False
        try:
            lock = flights.lock(key.digest, deadline, flights.may_wait(key.digest))
            entry = self._look_again(key.digest)
            if entry is None and self._sharing is not None and flights.may_wait(key.digest):
                entry, lease = self._sharing.seek(key.digest, deadline - time.monotonic())
                if entry is not None:
                    self._promote(entry)
            if entry is not None:
                stored = True
            else:
                held.append(key.digest)
                try:
                    entry, stored = self._compile(key, compile, meta)
                finally:
                    held.remove(key.digest)
            flight.entry = entry
            return entry
        except Exception as error:
            flight.error = error
            raise
        finally:
            if lease is not None:
                lease.release()
            if lock is not None:
                lock.release(stored=stored)
            flights.land(key.digest, flight)

    def _compile(
        self, key: Key, compile: Callable[[], Mapping[str, BytesLike] | Compiled], meta: Mapping[str, object] | None
    ) -> tuple[Entry, bool]:
        started = time.perf_counter()
        made = compile()
        cost = time.perf_counter() - started
        store = True
        if isinstance(made, Compiled):
            store = made.store
            cost = cost if made.cost is None else made.cost
            meta = {**(meta or {}), **(made.meta or {})}
            made = made.artifacts
        return self._keep(key, made, meta, cost, store)

    def _keep(
        self,
        key: Key,
        artifacts: Mapping[str, BytesLike],
        meta: Mapping[str, object] | None,
        cost: float,
        store: bool = True,
    ) -> tuple[Entry, bool]:
        """What a compile made, stored if that can be; the entry is good either way."""
        draft = draft_of(key, artifacts, meta, cost)
        self.counters.add("compiled")
        self.counters.add("seconds_compiling", cost)
        if not store:
            self.counters.add("refused.withheld")
            return draft.entry("compiled"), False
        return draft.entry("compiled"), self._store(draft)

    def _store(self, draft: Draft) -> bool:
        stored = self._disk is not None and self._disk.write(draft)
        if self._memory.max_bytes and self._remember(draft.entry("memory")) and self._disk is None:
            stored = True
        if stored:
            self.counters.put()
        if self._sharing is not None:
            self._sharing.offer(draft)
        return stored

    def _promote(self, entry: Entry) -> None:
        """A hit in a layer or a remote fills the nearer tiers, as it was: same key, cost, time and provenance."""
        if self._disk is not None and not self._disk.unwritable:
            self._disk.write(Draft.of(entry))
        if self._memory.max_bytes:
            self._remember(entry.at("memory"))

    def _remember(self, entry: Entry) -> bool:
        expires = entry.created + self._ttl_ns if self._ttl_ns else 0
        return self._memory.put(entry.digest, entry, entry.size, entry.cost, expires)

    def _look_again(self, digest: str) -> Entry | None:
        """For who has just come to lead: others may have finished since the first look."""
        entry = self._memory.get(digest)
        return self._get_far(digest) if entry is MISSING else entry

    def flights(self) -> Flights:
        """Who compiles what at this moment, for parts of hotstart that have steps of their own."""
        with self._starting:  # two threads with flights of their own would both compile
            if self._flights is None:
                from .store.flight import Flights

                on_disk = self._disk is not None and not self._disk.unwritable
                directory = f"{self._disk.root}/flights" if on_disk and self._disk is not None else None
                self._flights = Flights(directory, self.counters)
            return self._flights

    # -- looking after it ---------------------------------------------------------

    @property
    def disk(self) -> LocalStore | None:
        """The tier on disk, for parts of hotstart that keep files beside it; None for a cache in memory alone."""
        return self._disk

    def get_stored(self, key: Key) -> Entry | None:
        """The entry as others see it, past the memory tier; as ``get`` in all else, but no miss is counted."""
        return self._get_far(key.digest) if self._disk is not None else self.get(key)

    def explain(self, key: Key) -> Explanation:
        """Which fields differ from the nearest entry of the same kind and name; ``str()`` of it is a sentence."""
        from .store.explain import explain

        if not isinstance(key, Key):
            _refuse(key)
        return explain(self._disk, key)

    def delete(self, key: Key) -> bool:
        """Remove the entry from memory and disk; whether it was in either."""
        if not isinstance(key, Key):
            _refuse(key)
        remembered = self._memory.delete(key.digest)
        return (self._disk.delete(key.digest) if self._disk is not None else False) or remembered

    def clear(self) -> None:
        """Remove every entry. Layers are left alone."""
        from .store import gc

        self._memory.clear()
        if self._disk is not None:
            gc.clear(self._disk)

    def digests(self, kind: str | None = None) -> list[str]:
        """The digests of all keys on disk, or of those of one kind."""
        from .store import gc

        return gc.digests(self._disk, kind) if self._disk is not None else []

    def remove(self, kind: str) -> int:
        """Remove all entries of one kind; how many there were."""
        digests = self.digests(kind)
        for digest in digests:
            self._memory.delete(digest)
        return sum(self._disk.delete(digest) for digest in digests) if self._disk is not None else 0

    def count_payload_only(self, key: Key, artifact: str) -> None:
        """Let the budget count artifacts and not what surrounds them, for entries that look like this one.

        For caches whose callers give a cap of a few kilobytes and mean it. Exact for
        entries with keys of the same shape; the file of each is that much larger.
        """
        if self._disk is not None:
            self._disk.allowance = draft_of(key, {artifact: b""}, None, 0.0).pieces({})[1]

    def pin(self, key: Key) -> bool:
        """Keep the entry of this key from being evicted, until ``unpin``; in all processes, across restarts."""
        from .store.pins import pin

        return self._disk is not None and pin(self._disk, key.digest)

    def unpin(self, key: Key) -> bool:
        """Whether it was pinned, and no longer is."""
        from .store.pins import unpin

        return self._disk is not None and unpin(self._disk, key.digest)

    def gc(
        self, *, max_size: int | str | None = None, older_than: float | None = None, dry_run: bool = False
    ) -> dict[str, float]:
        """Remove what expired, what was not used for ``older_than`` seconds, then down to ``max_size``.

        Returns entries, bytes and seconds of compiling given up (or, with
        ``dry_run``, that would be). Also repairs accounts after a crash.
        """
        from .store import gc
        from .store.eviction import Evicted
        from .store.sizes import parse_size

        if older_than is not None and older_than < 0:
            raise UsageError(f"older_than is a number of seconds, not {older_than!r}")
        size = parse_size(max_size, "max_size", zero=True) if max_size is not None else None
        evicted = None
        if self._disk is not None:
            evicted = gc.collect(self._disk, max_size=size, older_than=older_than, dry_run=dry_run)
        return (evicted or Evicted()).as_dict()

    def verify(self) -> dict[str, list[str]]:
        """Read and check everything on disk: ``{"ok": […], "damaged": […]}``, the latter in quarantine now."""
        from .store import gc

        return gc.verify(self._disk) if self._disk is not None else {"ok": [], "damaged": []}

    def stats(self) -> dict[str, Any]:
        """What this object did and what the store holds; docs/counters.md explains each number."""
        from .store.statistics import summarise

        found = summarise(self.counters, self._memory, self._disk, self._layers)
        return self._sharing.add_to(found) if self._sharing is not None else found

    @property
    def sharing(self) -> Sharing | None:
        """The remote side, for parts of hotstart that push and pull; None without a remote."""
        return self._sharing

    def __len__(self) -> int:
        return self._disk.totals()[0] if self._disk is not None else len(self._memory)

    def __contains__(self, key: Key) -> bool:
        """Whether an entry is there; it is not read, so not checked, and no use is recorded."""
        digest = key.digest
        stores = ([self._disk] if self._disk else []) + self._layers
        return digest in self._memory or any(store.contains(digest) for store in stores)

    def close(self) -> None:
        """Make uses in memory known, see out what is on its way to a remote, for seconds at most, and close files.

        A closed cache opens again when it is used.
        """
        self._memory.flush()
        if self._sharing is not None:
            self._sharing.close()
        for store in ([self._disk] if self._disk else []) + self._layers:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # Sent to another process it is the same store, opened there.
        from functools import partial

        return partial(Cache, **self._arguments), (self.path,)

    def __repr__(self) -> str:
        return f"<Cache {self.path or 'in memory'}>"

    def before_fork(self) -> None:
        """Let turns of other threads end: a child made in the middle of one has half of it."""
        if self._disk is not None:
            self._disk.ledger.before_fork()

    def after_fork_in_parent(self) -> None:
        if self._disk is not None:
            self._disk.ledger.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        self._starting = allocate_lock()
        self.counters.after_fork()
        self._memory.after_fork()
        if self._flights is not None:
            self._flights.after_fork()
        if self._sharing is not None:
            self._sharing.after_fork()
        for store in ([self._disk] if self._disk else []) + self._layers:
            store.after_fork()


def _refuse(key: object) -> NoReturn:
    raise UsageError(f"a key is hotstart.Key(kind, field=value, …), not {type(key).__name__}")
