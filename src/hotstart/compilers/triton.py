"""``CacheManager``: Triton's kernels as entries of the store.

    TRITON_CACHE_MANAGER=hotstart.compilers.triton:CacheManager      for a process and its workers
    triton.knobs.cache.manager_class = CacheManager.over(cache)      for one process, another cache

Triton compiles a kernel between ``get_group`` (a miss) and ``put_group``; what it
puts in between is one entry, stored at the end, whole. Another process that asks
meanwhile waits, at most ``WAIT`` seconds; a compile that fails never reaches
``put_group``, so its place is given up when the manager is dropped, when the thread
begins another kernel, or when the process ends. Single files (Triton's C stubs,
autotune results) are entries of their own; asking for one never waits.

Triton reads files, so hits are served from a shelf (see ``shelf``): in
``TRITON_CACHE_DIR`` if that is set, under Triton's own names, because Inductor looks
for the cubin there to launch it without Python; else beside the store. Only what
the store still has is served.

Triton's key is taken as it is, completed by what it leaves out: for autotune
results the name of the device, for shared objects the C library. Paths of the
user's sources are inside Triton's output (line tables); nothing is found by them.
"""

from __future__ import annotations

import os
import time
from _thread import _local
from weakref import ref

from ..errors import HotstartError
from ..log import say
from ..store.counters import Counters
from . import shelf
from .triton_itself import always_compiles, describe, is_library, left_out, misfit, own_manager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..cache import Cache
    from ..keys.key import Key
    from ..store.entry import Entry
    from ..store.flight import Pending
    from .triton_places import Places

#: How long a compile waits for the same compile elsewhere. One that failed while its
#: exception is kept (a notebook does) holds its place that long, so not the store's quarter of an hour.
WAIT = 120.0

#: What happened in this process; ``stats`` shows it.
counters = Counters()

#: Per thread, the compile that was begun last.
_begun: Any = _local()


class CacheManager:
    """What Triton's ``get_cache_manager`` makes: one key's files, for as long as one compile.

    Where hotstart cannot or must not serve (``HOTSTART_DISABLE``, a Triton that does
    not fit, a store that cannot be opened, Triton's dump and override directories)
    the call returns Triton's own ``FileCacheManager``; the reason is said once.

    Only Triton's own errors and a disk on which no file can be written anywhere
    reach the caller.
    """

    __slots__ = ("_asked", "_folder", "_grouped", "_laid", "_pending", "_staged", "key", "places")

    #: Where a class made by ``over`` keeps its entries; None for ``hotstart.open()``, as configured.
    _places: Places | None = None

    key: str
    places: Places
    _grouped: bool
    _asked: float
    _pending: Pending | None
    _folder: str
    #: Files of this compile: where they lie, and their contents unless somebody may have changed them.
    _laid: dict[str, str]
    _staged: dict[str, bytes]

    def __new__(cls, key: str, override: bool = False, dump: bool = False, *more: Any, **named: Any) -> Any:
        if more or named:
            return _own_manager_for_more(key, override, dump, *more, **named)
        places = _settled.get(cls, _UNSETTLED)
        if places is _UNSETTLED:
            places = _settle(cls)
        # Triton's keys are base32. Anything else did not come from it, and would be a path.
        if places is None or override or dump or not key.isalnum():
            return own_manager(key, override, dump)
        manager = object.__new__(cls)
        manager.key, manager.places = key, places
        manager._grouped, manager._asked, manager._pending, manager._folder = False, 0.0, None, ""
        manager._laid, manager._staged = {}, {}
        return manager

    @classmethod
    def over(cls, cache: Cache) -> type[CacheManager]:
        """A class of managers over ``cache``, for ``triton.knobs.cache.manager_class``.

        Inductor's compile workers are processes of their own and know only the
        environment: for them set ``TRITON_CACHE_MANAGER`` and ``HOTSTART_HOME``.

        Triton's hash of itself is remembered from now on too (see ``triton_key``), which
        saves more than all else the first time a kernel is asked for.
        """
        from .triton_key import remember
        from .triton_places import Places

        remember()
        return type("CacheManager", (cls,), {"__slots__": (), "_places": Places(cache=cache)})

    # -- what Triton calls ---------------------------------------------------------

    def get_file(self, filename: str) -> str | None:
        """The path of a checked file, or None. Never waits."""
        if filename in self._laid:
            # Asked for in the middle of its compile: Triton writes locations into it (USE_IR_LOC).
            self._staged.pop(filename, None)
            return self._laid[filename]
        extra = left_out(filename)
        found = self._find("file", filename, extra) if extra is not None else None
        return found.get(filename) if found is not None else None

    def put(self, data: object, filename: str, binary: bool = True) -> str:
        """Lay down one file and return its path. Outside a group it is stored at once."""
        content = bytes(data) if isinstance(data, bytes) else str(data).encode()
        if not shelf.is_flat(filename):
            path: str = own_manager(self.key, False, False).put(data, filename)
            return path
        extra = left_out(filename)
        path = self._lay(filename, content, extra or "")
        if self._grouped:
            self._staged[filename] = content
        elif extra is not None:
            self._store("file", filename, extra, {filename: content})
        return path

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The files of a kernel by name, all checked; None when the caller is the one to compile it."""
        self._grouped = True
        return self._find("group", filename, "")

    def put_group(self, filename: str, group: Mapping[str, str]) -> str:
        """The kernel is complete: file it, and let those go on who waited for it."""
        contents = {}
        try:
            for name, path in group.items():
                data = self._staged.get(name)
                contents[name] = _read(path) if data is None else data
        except OSError as error:
            # Compiled, but gone from the disk already: Triton will say so itself.
            counters.error("put_group", error)
            if self._pending is not None:
                self._pending.abandon()
            return filename
        return self._store("group", filename, "", contents)

    # -- finding -------------------------------------------------------------------

    def _find(self, kind: str, name: str, extra: str) -> dict[str, str] | None:
        key, places = self.key, self.places
        title = f"triton {kind} {key} {name} {extra}".encode()
        for place in places.readable():
            folder = f"{place}/{key}" if not extra else self._folder_in(place, extra)
            try:
                found = shelf.look(folder, name, title)
            except shelf.DamagedError as error:
                counters.add("damaged")
                say("info", f"{folder}: {error}", once=f"shelf {folder}")
                continue
            if found is not None and places.use(found[0].digest, found[0].cost):
                return found[1]
        entry = self._ask(kind, name, extra)
        if entry is None:
            counters.add("miss")
            return None
        paths = self._lie_there(title, name, extra, entry) or self._lay_out(title, name, extra, entry)
        if paths is not None:
            counters.add("hit.store")
            counters.add("seconds_saved", entry.cost)
        return paths

    def _lie_there(self, title: bytes, name: str, extra: str, entry: Entry) -> dict[str, str] | None:
        """The files of an entry, if whoever compiled it while we waited has laid them out already."""
        for place in self.places.readable():
            try:
                found = shelf.look(self._folder_in(place, extra), name, title)
            except shelf.DamagedError:
                continue  # counted when it was looked at first
            if found is not None and found[0].digest == entry.digest:
                return found[1]
        return None

    def _ask(self, kind: str, name: str, extra: str) -> Entry | None:
        """The entry from the store. For a group, None means that others now wait for this manager."""
        from ..store.entry import Entry

        self._asked = time.perf_counter()
        cache = self.places.cache
        key = self._key(kind, name, extra)
        if kind == "file" or always_compiles():
            return cache.get(key)
        # Triton compiles one kernel at a time in a thread: an older one that is still open has failed.
        older = getattr(_begun, "pending", None)
        older = older() if older is not None else None
        if older is not None:
            older.abandon()
        answer = cache.begin(key, wait=WAIT)
        if isinstance(answer, Entry):
            return answer
        self._pending, self._asked = answer, answer.started
        _begun.pending = ref(answer)
        return None

    def _lay_out(self, title: bytes, name: str, extra: str, entry: Entry) -> dict[str, str] | None:
        """An entry's artifacts as files; None, and counted, when that cannot be done."""
        contents = dict(entry.items())
        for place in self.places.writable(any(map(is_library, contents))):
            folder = self._folder_in(place, extra)
            try:
                shelf.fill(folder, name, title, entry.digest, entry.cost, contents)
            except OSError as error:
                counters.error("shelf", error)
                continue
            except shelf.DamagedError as error:
                counters.add("refused.names")
                say("warning", f"Triton entry {entry.digest[:12]}… is not used: {error}", once="triton names")
                return None
            self.places.sweep(place, entry.size)
            return {each: f"{folder}/{each}" for each in contents}
        return None

    # -- storing -------------------------------------------------------------------

    def _lay(self, name: str, content: bytes, extra: str) -> str:
        """One file on disk. Raises OSError only when no place takes it: then Triton cannot go on either."""
        failed: OSError | None = None
        for place in self.places.writable(is_library(name)):
            # The files of a group lie together, wherever the first of them went.
            folder = (self._grouped and self._folder) or self._folder_in(place, extra)
            try:
                path = self._laid[name] = shelf.write(folder, name, content)
            except OSError as error:
                counters.error("shelf", error)
                self._folder, failed = "", error
                continue
            self._folder = folder
            return path
        raise failed or OSError("there is no place for files")

    def _store(self, kind: str, name: str, extra: str, contents: dict[str, bytes]) -> str:
        """An entry, and the slip that makes its files on the shelf count; the path of the latter."""
        pending, self._pending = self._pending, None
        key = pending.key if pending is not None else self._key(kind, name, extra)
        cost = time.perf_counter() - self._asked if self._asked else 0.0
        try:
            # The slip first: those who wait for the entry then find the files in place.
            path = self._file(kind, name, extra, key.digest, cost, contents)
            meta = describe(contents.get(name, b""))
            if pending is not None:
                stored = pending.finish(contents, meta=meta, cost=cost)
            else:
                stored = self.places.cache.put(key, contents, meta=meta, cost=cost)
            counters.add("stored" if stored else "refused.store")
            if not stored or self.places.cache.disk is None:
                self.places.keep(key.digest)
        except (HotstartError, shelf.DamagedError) as error:
            counters.add("refused.names")
            say("info", f"Triton's {name} is not stored: {error}", once="triton names")
            path = name
        finally:
            if pending is not None:
                pending.abandon()
        self.places.sweep(os.path.dirname(self._folder), sum(map(len, contents.values())))
        return path

    def _file(self, kind: str, name: str, extra: str, digest: str, cost: float, contents: dict[str, bytes]) -> str:
        """The slip for files that all lie in one folder. Without it they are laid out anew for whoever asks."""
        if all(self._laid.get(each) == f"{self._folder}/{each}" for each in contents):
            try:
                title = f"triton {kind} {self.key} {name} {extra}".encode()
                return shelf.fill(self._folder, name, title, digest, cost, contents, there=contents)
            except OSError as error:
                counters.error("shelf", error)
        return name

    # -- names ---------------------------------------------------------------------

    def _key(self, kind: str, name: str, extra: str) -> Key:
        from ..keys.key import Key

        fields = {"beside": extra} if extra else {}
        return Key("triton", name=name.removesuffix(".json"), what=kind, file=name, triton=self.key, **fields)

    def _folder_in(self, place: str, extra: str) -> str:
        """Results of two devices never share a file, not even for a moment: a folder for each."""
        if not extra:
            return f"{place}/{self.key}"
        from xxhash import xxh3_64_hexdigest

        return f"{place}/{self.key}-{xxh3_64_hexdigest(extra.encode())}"


def stats() -> dict[str, float]:
    """What managers of this process did: hits by where they came from, misses, what was stored, refused, damaged."""
    counted = counters.snapshot()
    for places in {places for places in _settled.values() if places is not None}:
        places.tell()
        counted["hit.shelf"] = counted.get("hit.shelf", 0) + places.hits
        counted["seconds_saved"] = counted.get("seconds_saved", 0) + places.saved
    return dict(sorted(counted.items()))


def _own_manager_for_more(*given: Any, **named: Any) -> Any:
    """A Triton that says more about a kernel than we know what to do with: its own manager does."""
    from triton.runtime.cache import FileCacheManager

    counters.add("fallback")
    say(
        "warning",
        f"this Triton gives its cache manager more ({', '.join(named) or 'arguments'}); its own is used",
        once="triton fallback",
    )
    return FileCacheManager(*given, **named)


#: By class, where it keeps entries; None where Triton's own manager serves.
_settled: dict[type, Places | None] = {}
_UNSETTLED: Any = object()


def _settle(cls: type[CacheManager]) -> Places | None:
    """Look at Triton and at the configuration, once."""
    reason = misfit(CacheManager)
    places = None
    if not reason:
        from .triton_places import configured

        places, reason = (cls._places, "") if cls._places is not None else configured()
    if reason:
        counters.add("fallback")
        say("warning", f"{reason}; Triton's own cache manager is used", once="triton fallback")
    # Two threads may both get here; they agree on the first.
    return _settled.setdefault(cls, places)


def _after_fork() -> None:
    """In a child: nothing was counted yet, and a thread that is gone may have held a lock."""
    counters.after_fork()
    for places in _settled.values():
        if places is not None:
            places.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
