"""The caches that are compared, each behind the same four names.

Settings are those a careful user would choose, and never worse than the default:

    hotstart              the disk tier alone (``memory=0``), reads checked, use recorded
    cuda.core FileStream  no cap unless one is asked for: a cap only makes it slower; fsyncs, checks nothing
    diskcache             as it comes, and with least-recently-used eviction, which writes on every read
    sqlite                WAL, ``synchronous=NORMAL``, blobs in the table; eviction by insertion order
    lmdb                  as it comes: fsync on every put, reads copied out of the map
    plain file            ``open(path, "rb").read()``, written beside and renamed: the floor for this layout
    plain file, raw       the same with ``os.open``, ``fstat``, ``read`` and ``close``
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3

import hotstart

from .common import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

#: A kernel of ordinary length: about 2 kB.
SOURCE = (
    'extern "C" __global__ void saxpy(float a, const float* x, float* y, size_t n) {\n'
    "  size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;\n"
    "  if (i < n) y[i] = a * x[i] + y[i];\n}\n"
) * 10


def kernel_key(number: int, source: str = SOURCE) -> hotstart.Key:
    """A key of ten fields, as an NVRTC compile has them."""
    return hotstart.Key(
        "nvrtc",
        name="saxpy",
        source=f"{source}// {number}",
        arch="sm_90",
        std="c++17",
        options=["--use_fast_math", "--extra-device-vectorization"],
        macros={"BLOCK": "128", "T": "float"},
        max_registers=64,
        target="cubin",
        name_expressions=("saxpy<float>",),
        toolchain="nvrtc 13.4.92 9f86d081884c7d659a2feaa0c55ad015",
    )


def plain_key(number: int) -> bytes:
    """32 bytes that a reader of ``cuda.core`` would call a key."""
    return hashlib.sha256(b"%d" % number).digest()


class Contender:
    """An open cache. ``get`` returns the bytes or None, ``put`` takes (key, bytes)."""

    __slots__ = ("close", "get", "key", "put")

    def __init__(
        self,
        key: Callable[[int], Any],
        get: Callable[[Any], bytes | None],
        put: Callable[[Any, bytes], object],
        close: Callable[[], object],
    ) -> None:
        self.key = key
        self.get = get
        self.put = put
        self.close = close

    def put_call(self, pairs: Sequence[tuple[Any, bytes]]) -> Call:
        """Putting these keys and values, to be timed."""
        put = self.put
        return Call(lambda pair: put(*pair), pairs)


def open_call(opener: Callable[..., Contender], path: str, cap: int | None = None) -> Call:
    """Opening the store at ``path`` and closing it again, to be timed."""
    return Call(lambda root: opener(root, cap).close(), [path])


def open_hotstart(root: str, cap: int | None = None, *, policy: str = "lru", memory: int | str = 0) -> Contender:
    cache = hotstart.Cache(root, max_size=cap or "10GiB", policy=policy, memory=memory)

    def get(key: hotstart.Key) -> bytes | None:
        entry = cache.get(key)
        return entry["cubin"] if entry is not None else None

    def put(key: hotstart.Key, value: bytes) -> bool:
        return cache.put(key, {"cubin": value}, cost=1.0)

    return Contender(kernel_key, get, put, cache.close)


def open_filestream(root: str, cap: int | None = None) -> Contender:
    from cuda.core.utils import FileStreamProgramCache

    cache = FileStreamProgramCache(root, max_size_bytes=cap)
    return Contender(plain_key, lambda key: cache.get(key), cache.__setitem__, cache.close)


def open_inmemory() -> Contender:
    from cuda.core.utils import InMemoryProgramCache

    cache = InMemoryProgramCache(max_size_bytes=1 << 30)
    return Contender(plain_key, lambda key: cache.get(key), cache.__setitem__, cache.close)


def open_diskcache(root: str, cap: int | None = None, *, policy: str = "least-recently-stored") -> Contender:
    import diskcache

    cache = diskcache.Cache(root, size_limit=cap or 10 << 30, eviction_policy=policy)
    return Contender(plain_key, lambda key: cache.get(key), lambda key, value: cache.set(key, value), cache.close)


def open_sqlite(root: str, cap: int | None = None) -> Contender:
    os.makedirs(root, exist_ok=True)
    db = sqlite3.connect(f"{root}/cache.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("CREATE TABLE IF NOT EXISTS cache (key BLOB UNIQUE, value BLOB)")
    held = db.execute("SELECT ifnull(sum(length(value)), 0) FROM cache").fetchone()[0] if cap else 0

    def get(key: bytes) -> bytes | None:
        row = db.execute("SELECT value FROM cache WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def put(key: bytes, value: bytes) -> None:
        nonlocal held
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT OR REPLACE INTO cache VALUES (?, ?)", (key, value))
        held += len(value)
        if cap is not None and held > cap:
            oldest = "DELETE FROM cache WHERE rowid = (SELECT min(rowid) FROM cache) RETURNING length(value)"
            held -= db.execute(oldest).fetchone()[0]
        db.execute("COMMIT")

    return Contender(plain_key, get, put, db.close)


def open_lmdb(root: str, cap: int | None = None) -> Contender:
    import lmdb

    env = lmdb.open(root, map_size=1 << 30)

    def get(key: bytes) -> bytes | None:
        with env.begin() as transaction:
            found: bytes | None = transaction.get(key)
            return found

    def put(key: bytes, value: bytes) -> None:
        with env.begin(write=True) as transaction:
            transaction.put(key, value)

    return Contender(plain_key, get, put, env.close)


def _plain_put(path: str, value: bytes) -> None:
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(value)
    os.replace(temporary, path)


def open_plain(root: str, cap: int | None = None) -> Contender:
    """Keys are paths already: not even joining two strings is counted against it."""
    os.makedirs(root, exist_ok=True)

    def get(path: str) -> bytes | None:
        try:
            return open(path, "rb").read()  # as people write it; closed by its last reference
        except FileNotFoundError:
            return None

    return Contender(lambda number: f"{root}/{plain_key(number).hex()}", get, _plain_put, lambda: None)


def open_raw(root: str, cap: int | None = None) -> Contender:
    os.makedirs(root, exist_ok=True)

    def get(path: str) -> bytes | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return os.read(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    def put(path: str, value: bytes) -> None:
        temporary = f"{path}.{os.getpid()}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, value)
        finally:
            os.close(fd)
        os.replace(temporary, path)

    return Contender(lambda number: f"{root}/{plain_key(number).hex()}", get, put, lambda: None)


OURS, FILESTREAM, INMEMORY, PLAIN = "hotstart", "cuda.core FileStream", "cuda.core InMemory", "plain file"


def on_disk() -> dict[str, Callable[..., Contender]]:
    """By name, how to open each one that is installed: (root, cap)."""
    found: dict[str, Callable[..., Contender]] = {
        OURS: open_hotstart,
        FILESTREAM: open_filestream,
        "diskcache": open_diskcache,
        "diskcache LRU": lambda root, cap=None: open_diskcache(root, cap, policy="least-recently-used"),
        "sqlite WAL": open_sqlite,
        PLAIN: open_plain,
        "plain file, raw": open_raw,
    }
    with contextlib.suppress(ImportError):
        import lmdb  # noqa: F401

        found["lmdb"] = open_lmdb
    return found
