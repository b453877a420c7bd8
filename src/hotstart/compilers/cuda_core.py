"""cuda.core's ``Program.compile(cache=…)`` on hotstart's store.

    from hotstart.compilers.cuda_core import ProgramCache
    program.compile("cubin", cache=ProgramCache(hotstart.open()))

What cuda.core's own caches lack: reads are checked, the cap holds over all
processes, an error of the store never aborts a compile, and the patch release of
the compilers (cuda.core's key knows NVRTC only by major.minor) and the headers that
a source includes count, wherever they lie.

``Program.compile`` itself refuses ``include_path`` and ``pre_include`` together with a
cache. Make the key with ``make_program_cache_key`` of this module, which follows them,
and ask the cache by hand, as cuda.core's documentation shows.
"""

from __future__ import annotations

from cuda.core.utils import ProgramCacheResource

from ..cache import Cache
from ..errors import UncacheableError
from ..keys.key import Key
from ..log import say
from .cuda_core_keys import ProgramKey, check_cap, code_of, fields_of, make_program_cache_key, stand_in
from .cuda_core_sqlite import SQLiteProgramCache

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from cuda.core import ObjectCode

KIND = "cuda.core"
_ARTIFACT = "code"


class ProgramCache(ProgramCacheResource):  # type: ignore[misc]  # cuda.core has no types
    """A ``ProgramCacheResource`` over a hotstart cache, which it shares with every other compiler.

    Keys are bytes or str, which alias; values go in as bytes-like or ``ObjectCode``
    and come out as ``bytes``. ``len`` and ``clear`` concern only what was stored
    through this kind of cache. Raises KeyError and TypeError as cuda.core's own do,
    and nothing else: what the store cannot do is a miss or a dropped write. So is a
    program whose key cannot be complete (the time of day in its source, an include
    that cannot be followed); that is counted as ``refused.uncacheable`` and said once.
    """

    def __init__(self, cache: Cache) -> None:
        if not isinstance(cache, Cache):
            raise TypeError(f"ProgramCache wraps a hotstart.Cache, not {type(cache).__name__}")
        self.cache = cache
        stand_in()

    def __getitem__(self, key: bytes | str) -> bytes:
        filed = self._key(key)
        found = self.cache.get(filed) if filed is not None else None
        if found is None:
            raise KeyError(key)
        return found[_ARTIFACT]

    def __setitem__(self, key: bytes | str, value: bytes | bytearray | memoryview | ObjectCode) -> None:
        filed, code = self._key(key), code_of(value)
        if isinstance(key, ProgramKey) and not key.unchanged():
            self.cache.counters.add("refused.withheld")  # a header was edited while it was compiled
        elif filed is not None:
            self.cache.put(filed, {_ARTIFACT: code})

    def __delitem__(self, key: bytes | str) -> None:
        filed = self._key(key)
        if filed is None or not self.cache.delete(filed):
            raise KeyError(key)

    def __len__(self) -> int:
        return len(self.cache.digests(KIND))

    def clear(self) -> None:
        self.cache.remove(KIND)

    def close(self) -> None:
        self.cache.close()

    def _key(self, key: bytes | str) -> Key | None:
        """None, counted and said, when it cannot be complete."""
        try:
            return Key(KIND, **fields_of(key))
        except UncacheableError as error:
            self.cache.counters.add("refused.uncacheable")
            say("warning", f"a program is compiled anew each time: {error}", once=f"cuda.core {error.reason}")
            return None


class FileProgramCache(ProgramCache):
    """A store of its own in a directory, for many processes; the cap counts payload bytes.

    ``max_size_bytes=None`` means hotstart's default budget: there is no unbounded cache here.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_size_bytes: int | None = None) -> None:
        super().__init__(Cache(path, max_size=check_cap(max_size_bytes) or "10GiB", memory=0, policy="lru"))
        if max_size_bytes is not None:
            self.cache.count_payload_only(Key(KIND, **fields_of(b"")), _ARTIFACT)


__all__ = ["KIND", "FileProgramCache", "ProgramCache", "SQLiteProgramCache", "make_program_cache_key"]
