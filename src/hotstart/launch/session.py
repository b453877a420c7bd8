"""One run: where it keeps its things, and what it opens only when something has to be restored or captured."""

from __future__ import annotations

import os
from time import time, time_ns

from . import live

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..cache import Cache
    from ..compilers.contract import Framework
    from ..config import Config
    from ..keys.key import Key
    from ..store.entry import Entry
    from ..store.local import LocalStore
    from .survey import Name


class Event:
    """Something that happened to a unit in this run: "hit", "new", "restored" or "damaged"."""

    __slots__ = ("cost", "event", "name", "size")

    def __init__(self, name: Name, event: str, cost: float = 0.0, size: int = 0) -> None:
        self.name = name
        self.event = event
        self.cost = cost
        self.size = size


class Session:
    """``home`` and ``root``; the frameworks that are ours in this run; what has happened so far."""

    def __init__(self, config: Config, home: str, root: str, rows: Iterable[Framework], workload: str) -> None:
        self.config = config
        self.home = home
        self.root = root
        self.rows = {row.name: row for row in rows}
        #: What people call it; what it used last time is given back first.
        self.workload = workload
        #: What is run, and with which variables; empty where nobody says.
        self.command: list[str] = []
        self.environ: dict[str, str] = {}
        #: Units that were given another name here: not compiled, though nobody has them yet.
        self.resettled: set[Name] = set()
        self.began = time()
        self.began_ns = time_ns()
        self.id = f"{self.began_ns:016x}-{os.getpid():x}"
        self.events: list[Event] = []
        #: Whether the file system tells when a file was read.
        self.reads_known = True
        #: Workloads to bring from the remote besides this one; what went from there to here ("pulled") and back.
        self.prefetch: list[str] = []
        self.shared: dict[str, dict[str, int]] = {}
        #: What could not be done, in words, for the record.
        self.troubles: list[str] = []
        #: Whether something went wrong that nobody had foreseen, and it was said.
        self.broken = False
        #: The one budget, in bytes; known once the store is open.
        self.max_size = 0
        self._live = -1
        self._cache: Cache | None = None
        self._layers: list[LocalStore] | None = None

    def begin(self) -> None:
        self._live = live.begin(self.home, self.id)

    def end(self) -> None:
        live.end(self.home, self.id, self._live)
        self._live = -1
        if self._cache is not None:
            self._cache.close()
        for layer in self._layers or ():
            layer.close()

    @property
    def read_only(self) -> bool:
        return bool(self.config["read_only"])

    @property
    def cache(self) -> Cache:
        if self._cache is None:
            # Without a remote: groups are published as packs of a workload, see ``share``, and one by one nobody
            # could ask for them.
            self._cache = self.config.open(memory=0, path=f"{self.home}/store", remote="")
            if self._cache.disk is not None:
                self.max_size = self._cache.disk.max_size
        return self._cache

    @property
    def store(self) -> LocalStore | None:
        """The entries on this machine; None when there are none to be had."""
        return self.cache.disk

    @property
    def stores(self) -> list[LocalStore]:
        """Where entries are looked for, in order: ours, then the layers under it.

        Layers are read in place. Through ``Cache.get`` each hit would be copied into our store as
        well, and a container would hold everything three times.
        """
        if self._layers is None:
            from ..store.counters import Counters
            from ..store.local import LocalStore

            self._layers = [
                LocalStore(path, Counters(), read_only=True, tier="layer") for path in self.config["under"] if path
            ]
        return [*([self.store] if self.store is not None else []), *self._layers]

    def entry(self, digest: str) -> Entry | None:
        """The entry, checked, from wherever it is; of others only what is trusted now."""
        for store in self.stores:
            found = store.read(digest)
            if found is not None and self.cache.admits(found):
                return found
        return None

    def keep(
        self,
        key: Key,
        artifacts: dict[str, bytes],
        meta: dict[str, object],
        cost: float,
        origin: tuple[str, str] | None,
    ) -> bool:
        """As ``Cache.put``; ``origin`` is who signed what it is made of, and for which scope, if not all is ours."""
        if origin is None:
            return self.cache.put(key, artifacts, meta=meta, cost=cost)
        from ..drafting import draft_of
        from ..keys.digest import encode
        from ..store.entry import Draft, from_remote

        ours = draft_of(key, {}, None, cost).entry("compiled").provenance
        draft = Draft(key, artifacts, meta, cost, encode(from_remote(ours, *origin)))
        stored = self.store is not None and self.store.write(draft)
        if stored:
            self.cache.counters.put()
        return stored

    def has(self, digest: str) -> bool:
        return any(store.contains(digest) for store in self.stores)
