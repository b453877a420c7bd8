"""cuda.core's ``Program.compile(cache=…)`` on hotstart's store.

    from hotstart.compilers.cuda_core import ProgramCache
    program.compile("cubin", cache=ProgramCache(hotstart.open()))

What cuda.core's own caches lack: reads are checked, the cap holds over all
processes, an error of the store never aborts a compile, and the patch release of
the compilers counts (cuda.core's key knows NVRTC only by major.minor).

``Program.compile`` hands a cache an opaque digest, so a cache cannot see which
headers a source includes. What it can do it does: header files in the working
directory, which quoted includes reach without cuda.core noticing, count by their
content. For all other includes (``include_path``, absolute paths) make the key
with ``make_program_cache_key`` of this module, which follows them.
"""

from __future__ import annotations

import os
from threading import RLock

from cuda.core import ObjectCode
from cuda.core.utils import ProgramCacheResource
from cuda.core.utils import make_program_cache_key as _cuda_core_key
from xxhash import xxh3_128_digest

from ..cache import Cache
from ..errors import StoreError, UncacheableError, UsageError
from ..keys import toolchain
from ..keys.digest import digest_of, encode
from ..keys.headers import closure
from ..keys.key import Key
from ..log import say
from .options import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from typing import Any

    from cuda.core import ProgramOptions


KIND = "cuda.core"
_ARTIFACT = "code"

#: Files that a quoted include in the working directory usually means.
_HEADERS = (".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl", ".inc", ".ipp", ".cu", ".cc", ".cpp")


class ProgramCache(ProgramCacheResource):  # type: ignore[misc]  # cuda.core has no types
    """A ``ProgramCacheResource`` over a hotstart cache, which it shares with every other compiler.

    Keys are bytes or str, which alias; values go in as bytes-like or ``ObjectCode``
    and come out as ``bytes``. ``len`` and ``clear`` concern only what was stored
    through this kind of cache. Raises KeyError and TypeError as cuda.core's own do,
    and nothing else: what the store cannot do is a miss or a dropped write.
    """

    def __init__(self, cache: Cache) -> None:
        if not isinstance(cache, Cache):
            raise TypeError(f"ProgramCache wraps a hotstart.Cache, not {type(cache).__name__}")
        self.cache = cache

    def __getitem__(self, key: bytes | str) -> bytes:
        found = self.cache.get(self._key(key))
        if found is None:
            raise KeyError(key)
        return found[_ARTIFACT]

    def __setitem__(self, key: bytes | str, value: bytes | bytearray | memoryview | ObjectCode) -> None:
        filed = self._key(key)
        self.cache.put(filed, {_ARTIFACT: code_of(value)})

    def __delitem__(self, key: bytes | str) -> None:
        if not self.cache.delete(self._key(key)):
            raise KeyError(key)

    def __len__(self) -> int:
        return len(self.cache.digests(KIND))

    def clear(self) -> None:
        self.cache.remove(KIND)

    def close(self) -> None:
        self.cache.close()

    def _key(self, key: bytes | str) -> Key:
        # Digests, so that all keys are of one length and the cap can be counted in payload.
        return Key(
            KIND, key=digest_of(key_bytes(key)), toolchain=_digest(_toolchains()), beside=_digest(_headers_beside())
        )


class FileProgramCache(ProgramCache):
    """A store of its own in a directory, for many processes; the cap counts payload bytes.

    ``max_size_bytes=None`` means hotstart's default budget: there is no unbounded cache here.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_size_bytes: int | None = None) -> None:
        super().__init__(Cache(path, max_size=_check_cap(max_size_bytes) or "10GiB", memory=0, policy="lru"))
        if max_size_bytes is not None:
            self.cache.count_payload_only(self._key(b""), _ARTIFACT)


class SQLiteProgramCache(ProgramCacheResource):  # type: ignore[misc]  # cuda.core has no types
    """One SQLite file, strict least-recently-used order, for one process (any number of threads).

    Values are checked when they are read. Raises StoreError when this Python has no
    sqlite3 or the path cannot be a database; after that, errors are misses and
    dropped writes, counted in ``errors``.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_size_bytes: int | None = None) -> None:
        self._cap = _check_cap(max_size_bytes)
        try:
            import sqlite3
        except ImportError as error:
            raise StoreError("SQLiteProgramCache needs sqlite3, which this Python was built without") from error
        self.errors = 0
        self._lock = RLock()
        self._error = sqlite3.Error
        self._path = os.fspath(path)
        try:
            self._db = self._open(sqlite3)
        except sqlite3.Error as error:
            raise StoreError(f"{self._path} is no database and cannot be made one: {error}") from error

    def _open(self, module: Any) -> sqlite3.Connection:
        if self._path != ":memory:":
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db: sqlite3.Connection = module.connect(self._path, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute(
            "CREATE TABLE IF NOT EXISTS programs"
            " (key BLOB PRIMARY KEY, used INTEGER NOT NULL, size INTEGER NOT NULL, data BLOB NOT NULL,"
            "  sum BLOB NOT NULL)"
        )
        db.execute("CREATE INDEX IF NOT EXISTS by_use ON programs (used)")
        return db

    def __getitem__(self, key: bytes | str) -> bytes:
        name = _complete(key)

        def look() -> bytes | None:
            row = self._db.execute("SELECT data, sum FROM programs WHERE key = ?", (name,)).fetchone()
            if row is None:
                return None
            if _check(name, row[0]) != row[1]:
                self.errors += 1
                self._db.execute("DELETE FROM programs WHERE key = ?", (name,))
                return None
            self._db.execute(f"UPDATE programs SET used = {_NEXT} WHERE key = ?", (name,))
            return bytes(row[0])

        found: bytes | None = self._try(look)
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: bytes | str, value: bytes | bytearray | memoryview | ObjectCode) -> None:
        name, data = _complete(key), code_of(value)

        def store() -> None:
            if self._cap is not None and len(data) > self._cap:
                # What cannot fit is not admitted, and what it would have replaced is outdated.
                self._db.execute("DELETE FROM programs WHERE key = ?", (name,))
                return
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(
                f"INSERT OR REPLACE INTO programs VALUES (?, {_NEXT}, ?, ?, ?)",
                (name, len(data), data, _check(name, data)),
            )
            if self._cap is not None:
                self._evict()
            self._db.execute("COMMIT")

        self._try(store)

    def _evict(self) -> None:
        (total,) = self._db.execute("SELECT ifnull(sum(size), 0) FROM programs").fetchone()
        while total > (self._cap or total):
            name, size = self._db.execute("SELECT key, size FROM programs ORDER BY used LIMIT 1").fetchone()
            self._db.execute("DELETE FROM programs WHERE key = ?", (name,))
            total -= size

    def __delitem__(self, key: bytes | str) -> None:
        name = _complete(key)
        if not self._try(lambda: self._db.execute("DELETE FROM programs WHERE key = ?", (name,)).rowcount):
            raise KeyError(key)

    def __len__(self) -> int:
        return int(self._try(lambda: self._db.execute("SELECT count(*) FROM programs").fetchone()[0]) or 0)

    def clear(self) -> None:
        self._try(lambda: self._db.execute("DELETE FROM programs"))

    def close(self) -> None:
        self._try(self._db.close)

    def _try(self, work: Callable[[], Any]) -> Any:
        with self._lock:
            try:
                return work()
            except self._error as error:
                self.errors += 1
                say("warning", f"{self._path}: {error}; compiling without it", once=f"sqlite {self._path}")
                if self._db_in_transaction():
                    self._db.execute("ROLLBACK")
                return None

    def _db_in_transaction(self) -> bool:
        try:
            return self._db.in_transaction
        except self._error:
            return False


#: One more than the highest use so far.
_NEXT = "(SELECT ifnull(max(used), 0) + 1 FROM programs)"


def make_program_cache_key(
    *,
    code: str | bytes,
    code_type: str,
    options: ProgramOptions,
    target_type: str,
    name_expressions: Sequence[str | bytes] = (),
    extra_digest: bytes | None = None,
) -> bytes:
    """cuda.core's key, completed: the compiler's patch release, and every header the source can reach.

    Takes what ``cuda.core.utils.make_program_cache_key`` takes and refuses what it
    refuses, except that ``include_path``, ``pre_include`` and a ``name`` with a
    directory need no ``extra_digest``: those headers are followed here. Raises
    ValueError for options with side effects, UncacheableError (with the reason)
    where completeness cannot be had.
    """
    completed: dict[str, object] = {"extra": extra_digest}
    kind = code_type.lower() if isinstance(code_type, str) else code_type
    if kind == "c++" and isinstance(code, str):
        completed["toolchain"] = toolchain.nvrtc()
        completed["headers"] = _closure(code, options, target_type)
    elif kind == "nvvm":
        completed["toolchain"] = toolchain.nvvm()
    elif kind == "ptx":
        completed["toolchain"] = _linker()
    return bytes(
        _cuda_core_key(
            code=code,
            code_type=code_type,
            options=options,
            target_type=target_type,
            name_expressions=name_expressions,
            extra_digest=bytes.fromhex(_digest(completed)),
        )
    )


def key_bytes(key: object) -> bytes:
    """``"k"`` and ``b"k"`` are the same key; everything else is none."""
    if isinstance(key, (bytes, bytearray)):
        return bytes(key)
    if isinstance(key, str):
        return key.encode("utf-8")
    raise TypeError(f"cache keys must be bytes or str, not {type(key).__name__}")


def code_of(value: object) -> bytes:
    """The binary itself; of an ``ObjectCode`` made from a path, what the file holds now."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, ObjectCode):
        code = value.code
        if not isinstance(code, str):
            return bytes(code)
        try:
            with open(code, "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise FileNotFoundError(f"{code}, which the ObjectCode was made from, is gone: nothing to store") from None
    raise TypeError(f"cache values must be bytes-like or ObjectCode, not {type(value).__name__}")


def _check_cap(size: int | None) -> int | None:
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size <= 0):
        raise UsageError(f"max_size_bytes is a positive number of bytes or None, not {size!r}")
    return size


def _complete(key: bytes | str) -> bytes:
    """A key for a store that has no fields: the caller's, and what cuda.core leaves out of it."""
    return bytes.fromhex(_digest((key_bytes(key), _toolchains(), _headers_beside())))


def _digest(value: object) -> str:
    return digest_of(encode(value))


def _check(name: bytes, data: bytes) -> bytes:
    return xxh3_128_digest(name + data)


def _toolchains() -> list[object]:
    """Every compiler a ``Program`` may use: which one made a given digest cannot be told from it."""
    return [_or_none(find) for find in (toolchain.nvrtc, toolchain.nvjitlink, toolchain.nvvm)]


def _linker() -> object:
    """nvJitLink where it can be had; else the driver, whose version is in cuda.core's own key."""
    return _or_none(toolchain.nvjitlink)


def _or_none(find: Callable[[], object]) -> object:
    try:
        return find()
    except UncacheableError:
        return None  # not installed, so it made nothing


def _headers_beside() -> object:
    """What the header files in the working directory hold, and what those include from there."""
    try:
        with os.scandir(".") as found:
            names = sorted(item.name for item in found if item.name.endswith(_HEADERS))
    except OSError:
        return None  # a working directory that cannot be read has no headers to include
    if not names:
        return None
    everything = "".join(f'#include "{name}"\n' for name in names)
    try:
        return names, closure(everything)
    except UncacheableError:
        # One of them cannot be followed (the time of day, a computed include): then by its text alone.
        return names, [_text_digest(name) for name in names]


def _text_digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return digest_of(file.read())
    except OSError:
        return ""


def _closure(code: str, options: ProgramOptions, target_type: str) -> object:
    """The headers of a C++ program, from the very options NVRTC will be given."""
    given = [option.decode() for option in options.as_bytes("nvrtc", target_type)]
    parsed = parse(given)
    outside = [line for line in parsed.refusals if "pch" in line.lower()]
    if outside:
        raise ValueError(f"no key can be made for options that read precompiled headers: {'; '.join(outside)}")
    name = options.name if isinstance(options.name, str) else "default_program"
    return closure(code, name=name, **parsed.search())
