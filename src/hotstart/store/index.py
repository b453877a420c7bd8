"""The index: what eviction, listings and explanations need, derived from the files.

SQLite, one file, touched only under the ledger's lock, so it needs no locking of
its own and no shared-memory file (WAL breaks on network file systems). It is
never needed for a hit. Delete it and it is rebuilt; damage it and it is deleted.
``synchronous=OFF``: a process that dies leaves it whole, a power cut may not, and
then it is rebuilt.
"""

from __future__ import annotations

from . import files
from .ledger import Put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

#: Raised with the schema: an index of another version is rebuilt.
SCHEMA_VERSION = 1

_SCHEMA = f"""
CREATE TABLE entries (
    digest BLOB PRIMARY KEY, size INTEGER NOT NULL, weight INTEGER NOT NULL, used INTEGER NOT NULL,
    worth REAL NOT NULL, uses INTEGER NOT NULL, cost REAL NOT NULL, created INTEGER NOT NULL,
    kind TEXT NOT NULL, name TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_use ON entries (used);
CREATE INDEX by_worth ON entries (worth, used);
CREATE TABLE blobs (address BLOB PRIMARY KEY, size INTEGER NOT NULL, refs INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX loose ON blobs (refs) WHERE refs <= 0;
CREATE TABLE refs (entry BLOB NOT NULL, blob BLOB NOT NULL, PRIMARY KEY (entry, blob)) WITHOUT ROWID;
CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
PRAGMA user_version = {SCHEMA_VERSION};
"""


_CANDIDATE = "digest, size, weight, used, worth, uses, cost"


class IndexGoneError(Exception):
    """There is no usable index: missing, damaged, of another version, or no sqlite3 here."""


class Candidate:
    """An entry that eviction may take."""

    __slots__ = ("cost", "digest", "size", "used", "uses", "weight", "worth")

    def __init__(self, digest: bytes, size: int, weight: int, used: int, worth: float, uses: int, cost: float) -> None:
        self.digest = digest
        #: Bytes of its own file, and with its blobs.
        self.size = size
        self.weight = weight
        self.used = used
        self.worth = worth
        self.uses = uses
        self.cost = cost


class Index:
    """An open index. Raises IndexGoneError whenever SQLite cannot go on."""

    __slots__ = ("_db", "_error")

    def __init__(self, path: str, *, create: bool = False) -> None:
        try:
            import sqlite3
        except ImportError:
            raise IndexGoneError("this Python has no sqlite3") from None
        self._error = sqlite3.Error
        # A rename of a rebuilt index over this one must not be missed, hence no URI tricks: a plain path,
        # and the store compares the file's identity before each use.
        try:
            if create:
                # Made by us first: SQLite would give it the rights that the umask allows.
                files.close(files.open(path, files.UPDATE, files.PRIVATE_FILE))
            uri = f"file:{_quoted(path)}?mode={'rwc' if create else 'rw'}"
            # The ledger's lock serialises threads as well, so any of them may use the connection.
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=1)
        except (sqlite3.Error, OSError) as error:
            raise IndexGoneError(str(error)) from error
        try:
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute("PRAGMA journal_mode=TRUNCATE")
            self._db.execute("PRAGMA cache_size=-8000")
            if create:
                self._db.executescript(_SCHEMA)
            elif self._one("PRAGMA user_version") != SCHEMA_VERSION:
                raise IndexGoneError("it is of another version")
        except (sqlite3.Error, IndexGoneError) as error:
            self.close()  # a traceback would keep it open
            raise IndexGoneError(str(error)) from error

    def close(self) -> None:
        try:
            self._db.close()
        except self._error:
            pass  # nothing more can be done with it, and it is only derived

    def begin(self) -> None:
        self._run("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._run("COMMIT")

    def rollback(self) -> None:
        if self._db.in_transaction:
            self._run("ROLLBACK")

    @property
    def generation(self) -> int:
        """The last generation of the ledger that was taken in."""
        return int(self._one("SELECT value FROM state WHERE name='generation'") or 0)

    @generation.setter
    def generation(self, value: int) -> None:
        self._run("INSERT OR REPLACE INTO state VALUES ('generation', ?)", (value,))

    @property
    def inflation(self) -> float:
        """GreedyDual's clock: the worth of what was evicted last."""
        return float(self._one("SELECT value FROM state WHERE name='inflation'") or 0)

    @inflation.setter
    def inflation(self, value: float) -> None:
        self._run("INSERT OR REPLACE INTO state VALUES ('inflation', ?)", (value,))

    def apply(
        self, records: Iterable[Put | bytes], worth: float, truth: Callable[[Put], Put] = lambda put: put
    ) -> None:
        """Take in ledger records, in order; applying them twice changes nothing.

        ``truth`` says what the entry's file holds now. It is asked where one with blobs
        was replaced: whoever was killed between record and rename has left the record of
        an entry that never came, and the blobs of the one that is there must not become loose.
        """
        for record in records:
            if isinstance(record, Put):
                self._put(record, worth, truth)
            else:
                self.remove(record)

    def _put(self, put: Put, inflation: float, truth: Callable[[Put], Put]) -> None:
        for address, size in put.blobs:
            self._run("INSERT OR IGNORE INTO blobs VALUES (?,?,0)", (address, size))
        if self._unlink_blobs(put.digest):
            put = truth(put)
        weight = put.size + sum(size for _, size in put.blobs)
        self._run(
            "INSERT OR REPLACE INTO entries VALUES (?,?,?,?,?,?,?,?,?,?)",
            (
                put.digest,
                put.size,
                weight,
                put.used,
                inflation + worth_of(put.cost, weight, 1),
                1,
                put.cost,
                put.created,
                _text(put.kind),
                _text(put.name),
            ),
        )
        for address, size in put.blobs:
            self._run("INSERT OR IGNORE INTO blobs VALUES (?,?,0)", (address, size))
            if self._run("INSERT OR IGNORE INTO refs VALUES (?,?)", (put.digest, address)):
                self._run("UPDATE blobs SET refs = refs + 1 WHERE address = ?", (address,))

    def remove(self, digest: bytes) -> None:
        """Forget an entry; its blobs become loose when nothing else refers to them."""
        self._unlink_blobs(digest)
        self._run("DELETE FROM entries WHERE digest = ?", (digest,))

    def _unlink_blobs(self, digest: bytes) -> bool:
        """Whether there were any."""
        blobs = self._all("SELECT blob FROM refs WHERE entry = ?", (digest,))
        for (address,) in blobs:
            self._run("UPDATE blobs SET refs = refs - 1 WHERE address = ?", (address,))
            self._run("DELETE FROM refs WHERE entry = ? AND blob = ?", (digest, address))
        return bool(blobs)

    def coldest(self, policy: str, limit: int) -> list[Candidate]:
        """What the policy would give up first, as far as the index knows."""
        order = "used" if policy == "lru" else "worth, used"
        rows = self._all(f"SELECT {_CANDIDATE} FROM entries ORDER BY {order} LIMIT ?", (limit,))
        return [Candidate(*row) for row in rows]

    def older_than(self, column: str, limit_ns: int, limit: int) -> list[Candidate]:
        """Entries last used (or created) before a moment."""
        where = {"used": "used", "created": "created"}[column]
        sql = f"SELECT {_CANDIDATE} FROM entries WHERE {where} < ? ORDER BY used LIMIT ?"
        return [Candidate(*row) for row in self._all(sql, (limit_ns, limit))]

    def touch(self, found: Candidate, used: int, inflation: float) -> None:
        """A candidate turned out to have been used since: note it, and what it is worth now."""
        found.used = used
        found.uses += 1
        found.worth = inflation + worth_of(found.cost, found.weight, found.uses)
        self._run(
            "UPDATE entries SET used = ?, uses = ?, worth = ? WHERE digest = ?",
            (used, found.uses, found.worth, found.digest),
        )

    def loose_blobs(self, limit: int) -> list[tuple[bytes, int]]:
        """Blobs no entry refers to."""
        return self._all("SELECT address, size FROM blobs WHERE refs <= 0 LIMIT ?", (limit,))

    def forget_blob(self, address: bytes) -> None:
        self._run("DELETE FROM blobs WHERE address = ?", (address,))

    def lose_blob(self, address: bytes) -> None:
        """A blob's file is gone. Entries that refer to it stay listed until they are read."""
        self._run("DELETE FROM refs WHERE blob = ?", (address,))
        self.forget_blob(address)

    def add_blob(self, address: bytes, size: int) -> None:
        """A blob found on disk that no record spoke of, or not rightly."""
        sql = "INSERT INTO blobs VALUES (?,?,0) ON CONFLICT (address) DO UPDATE SET size = excluded.size"
        self._run(sql, (address, size))

    def between(self, table: str, first: bytes, last: bytes) -> dict[bytes, int]:
        """Names and sizes in a range of digests of ``entries`` or ``blobs``: one directory's worth."""
        column = {"entries": "digest", "blobs": "address"}[table]
        rows = self._all(f"SELECT {column}, size FROM {table} WHERE {column} BETWEEN ? AND ?", (first, last))
        return dict(rows)

    def totals(self) -> tuple[int, int]:
        """(entries, bytes) by adding everything up: for after a crash, not for every day."""
        count, total = self._all("SELECT count(*), ifnull(sum(size), 0) FROM entries")[0]
        (blobs,) = self._all("SELECT ifnull(sum(size), 0) FROM blobs")[0]
        return count, total + blobs

    def named(self, kind: str, name: str, limit: int) -> list[bytes]:
        """The newest entries of one kind and name."""
        sql = "SELECT digest FROM entries WHERE kind = ? AND name = ? ORDER BY created DESC LIMIT ?"
        return [row[0] for row in self._all(sql, (_text(kind), _text(name), limit))]

    def of_kind(self, kind: str | None) -> list[bytes]:
        """All entries, or those of one kind."""
        where = "" if kind is None else "WHERE kind = ?"
        return [row[0] for row in self._all(f"SELECT digest FROM entries {where}", (kind,) if kind is not None else ())]

    def summary(self) -> list[tuple[str, int, int, float]]:
        """(kind, entries, bytes, seconds of compiling) by kind."""
        return self._all("SELECT kind, count(*), sum(size), sum(cost) FROM entries GROUP BY kind ORDER BY kind")

    def _run(self, sql: str, values: tuple[object, ...] = ()) -> int:
        try:
            return self._db.execute(sql, values).rowcount
        except self._error as error:
            raise IndexGoneError(str(error)) from error

    def _all(self, sql: str, values: tuple[object, ...] = ()) -> list[Any]:
        try:
            return self._db.execute(sql, values).fetchall()
        except self._error as error:
            raise IndexGoneError(str(error)) from error

    def _one(self, sql: str, values: tuple[object, ...] = ()) -> Any:
        rows = self._all(sql, values)
        return rows[0][0] if rows else None


def worth_of(cost: float, size: int, uses: int) -> float:
    """GreedyDual-Size-Frequency: seconds a kilobyte saves, by how often it was wanted."""
    return uses * cost * 1024 / (size + 1024)


def _text(value: str) -> str:
    """Without lone surrogates, which SQLite does not take; the same as a record of the ledger gives back."""
    return value if value.isascii() else value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _quoted(path: str) -> str:
    """A path inside an SQLite URI."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
