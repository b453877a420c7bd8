"""``SQLiteProgramCache``: cuda.core's program cache contract on one SQLite file."""

from __future__ import annotations

import errno
import os
import stat
from threading import RLock

from cuda.core.utils import ProgramCacheResource
from xxhash import xxh3_128_digest

from ..errors import StoreError, UncacheableError
from ..keys.digest import digest_of, encode
from ..log import say
from .cuda_core_keys import ProgramKey, check_cap, code_of, fields_of, stand_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from typing import Any

    from cuda.core import ObjectCode

#: One more than the highest use so far.
_NEXT = "(SELECT ifnull(max(used), 0) + 1 FROM programs)"

#: What says that the path was a mistake. Everything else, a full disk first of all, may be over the next time.
_MISTAKES = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP))
_NO_DATABASE = frozenset(("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_ERROR", "SQLITE_SCHEMA"))


class SQLiteProgramCache(ProgramCacheResource):  # type: ignore[misc]  # cuda.core has no types
    """One SQLite file, strict least-recently-used order, for one process (any number of threads).

    Values are checked when they are read. Raises StoreError when this Python has no
    sqlite3 or the path cannot be a database. All other errors are misses and dropped
    writes, counted in ``errors``: a full disk, also when the cache is made, or a
    program whose key cannot be complete (``uncacheable``). The reason is said once.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_size_bytes: int | None = None) -> None:
        self._cap = check_cap(max_size_bytes)
        try:
            import sqlite3
        except ImportError as error:
            raise StoreError("SQLiteProgramCache needs sqlite3, which this Python was built without") from error
        self.errors = self.uncacheable = 0
        self._lock = RLock()
        self._sqlite = sqlite3
        self._path = os.fspath(path)
        #: None while it cannot be opened, which is then tried again each time.
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        try:
            self._connection = self._open()
        except StoreError:
            raise
        except OSError as error:
            if error.errno in _MISTAKES:
                raise StoreError(f"{self._path} cannot be a database: {error.strerror}") from error
            self._failed(error)
        except sqlite3.Error as error:
            if any(getattr(error, "sqlite_errorname", "").startswith(name) for name in _NO_DATABASE):
                raise StoreError(f"{self._path} is no database and cannot be made one: {error}") from error
            self._failed(error)
        stand_in()

    def _open(self) -> sqlite3.Connection:
        if self._path != ":memory:":
            # Not to wait at a pipe that somebody has put there.
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0), 0o600)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise StoreError(f"{self._path} cannot be a database: it is not a regular file")
            finally:
                os.close(fd)
        db = self._sqlite.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute(
                "CREATE TABLE IF NOT EXISTS programs"
                " (key BLOB PRIMARY KEY, used INTEGER NOT NULL, size INTEGER NOT NULL, data BLOB NOT NULL,"
                "  sum BLOB NOT NULL)"
            )
            db.execute("CREATE INDEX IF NOT EXISTS by_use ON programs (used)")
        except BaseException:
            db.close()
            raise
        return db

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._closed:
                raise self._sqlite.ProgrammingError("the cache is closed")
            self._connection = self._open()
        return self._connection

    def __getitem__(self, key: bytes | str) -> bytes:
        name = self._name(key)

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

        found: bytes | None = self._try(look) if name else None
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: bytes | str, value: bytes | bytearray | memoryview | ObjectCode) -> None:
        name, data = self._name(key), code_of(value)

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

        if name and (not isinstance(key, ProgramKey) or key.unchanged()):
            self._try(store)

    def _evict(self) -> None:
        (total,) = self._db.execute("SELECT ifnull(sum(size), 0) FROM programs").fetchone()
        while total > (self._cap or total):
            name, size = self._db.execute("SELECT key, size FROM programs ORDER BY used LIMIT 1").fetchone()
            self._db.execute("DELETE FROM programs WHERE key = ?", (name,))
            total -= size

    def __delitem__(self, key: bytes | str) -> None:
        name = self._name(key)
        if not name or not self._try(lambda: self._db.execute("DELETE FROM programs WHERE key = ?", (name,)).rowcount):
            raise KeyError(key)

    def __len__(self) -> int:
        return int(self._try(lambda: self._db.execute("SELECT count(*) FROM programs").fetchone()[0]) or 0)

    def clear(self) -> None:
        self._try(lambda: self._db.execute("DELETE FROM programs"))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._try(self._connection.close)

    def _name(self, key: object) -> bytes:
        """The key in full, in a database that has no fields; empty when it cannot be complete."""
        try:
            return bytes.fromhex(digest_of(encode(fields_of(key))))
        except UncacheableError as error:
            self.uncacheable += 1
            say("warning", f"a program is compiled anew each time: {error}", once=f"cuda.core {error.reason}")
            return b""

    def _try(self, work: Callable[[], Any]) -> Any:
        with self._lock:
            try:
                return work()
            except (self._sqlite.Error, OSError) as error:
                self._failed(error)
                self._roll_back()
                return None

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        say("warning", f"{self._path}: {error}; compiling without it", once=f"sqlite {self._path}")

    def _roll_back(self) -> None:
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except self._sqlite.Error:
            self.errors += (
                1  # a disk that is full for a rollback too: the journal is rolled back when it is next opened
            )


def _check(name: bytes, data: bytes) -> bytes:
    return xxh3_128_digest(name + data)
