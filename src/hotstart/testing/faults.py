"""A disk that fails, dawdles or ends the process, at exactly the call one names.

The store makes every system call through ``hotstart.store.files`` and every SQL
statement through ``hotstart.store.index.Index``. These context managers stand in
between for the length of a ``with`` block:

    with FailingIO() as io:                       # only counts
        cache.put(key, artifacts)
    for at in range(1, io.calls + 1):             # then each call in turn
        with FailingIO(errno.ENOSPC, at=at):
            cache.put(key, artifacts)

They act on the whole process, so one block at a time unless they are nested.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time

from ..store import files
from ..store.index import Index

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection
    from typing import Any, Self

_FILE_OPERATIONS = (
    "access",
    "close",
    "flock",
    "fstat",
    "fsync",
    "ftruncate",
    "listdir",
    "mkdir",
    "open",
    "pread",
    "pwrite",
    "read",
    "rename",
    "scandir",
    "stat",
    "unlink",
    "utime",
    "write",
    "writev",
)

#: Everything that can be made to fail; ``sqlite`` is one statement, or opening the index.
OPERATIONS = (*_FILE_OPERATIONS, "sqlite")

#: What a failed statement looks like to the index: the words SQLite has for each cause.
_SQLITE_SAYS = {errno.ENOSPC: "database or disk is full", errno.EROFS: "attempt to write a readonly database"}


class _Tap:
    """Counts the calls that match ``only``, keeps their names, and lets a subclass act on each."""

    def __init__(self, only: Collection[str] = OPERATIONS) -> None:
        unknown = set(only) - set(OPERATIONS)
        if unknown:
            raise ValueError(f"no such operation: {', '.join(sorted(unknown))}; there are {', '.join(OPERATIONS)}")
        self._only = frozenset(only)
        self._lock = threading.Lock()
        self._undo: list[tuple[Any, str, Any]] = []
        #: The matching calls so far, in order.
        self.log: list[str] = []

    @property
    def calls(self) -> int:
        return len(self.log)

    def __enter__(self) -> Self:
        for name in _FILE_OPERATIONS:
            if name in self._only:
                self._replace(files, name, self._file_call(name, getattr(files, name)))
        if "sqlite" in self._only:
            self._replace(Index, "__init__", self._opening(Index.__init__))
            for name in ("_run", "_all"):
                self._replace(Index, name, self._statement(getattr(Index, name)))
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            owner, name, real = self._undo.pop()
            setattr(owner, name, real)

    def _replace(self, owner: Any, name: str, stand_in: Any) -> None:
        self._undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, stand_in)

    def _file_call(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._act(name, self._count(name), lambda: real(*args, **kwargs), args)

        return call

    def _statement(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(index: Index, *args: Any) -> Any:
            def fail(error: sqlite3.Error) -> Any:
                # The index meets a real error of SQLite, so that what it makes of one is run too.
                kept, index._db = index._db, _BrokenConnection(error)  # type: ignore[assignment]
                try:
                    return real(index, *args)
                finally:
                    index._db = kept

            return self._act("sqlite", self._count("sqlite"), lambda: real(index, *args), (fail,))

        return call

    def _opening(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(index: Index, path: str, *, create: bool = False) -> None:
            def fail(_error: sqlite3.Error) -> None:
                real(index, f"{path}/below/a/file", create=create)

            self._act("sqlite", self._count("sqlite"), lambda: real(index, path, create=create), (fail,))

        return call

    def _count(self, name: str) -> int:
        with self._lock:
            self.log.append(name)
            return len(self.log)

    def _act(self, name: str, number: int, real: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        raise NotImplementedError


class FailingIO(_Tap):
    """Makes the ``at``-th matching call fail with ``error`` (a number from ``errno``).

    ``at``       1 is the first call; 0, the default, only counts
    ``onwards``  every matching call from there on fails, as when a disk is gone for good
    ``only``     the operations that count; see ``OPERATIONS``
    ``torn``     a write that fails has written half of its bytes by then

    A failing ``close`` closes all the same, and a failing ``access`` is False, as
    in the kernel. A failing ``sqlite`` is an error inside SQLite itself. ``failed``
    says how many calls were made to fail.
    """

    def __init__(
        self,
        error: int = errno.EIO,
        *,
        at: int = 0,
        onwards: bool = False,
        only: Collection[str] = OPERATIONS,
        torn: bool = False,
    ) -> None:
        super().__init__(only)
        self.error = error
        self.at = at
        self.onwards = onwards
        self.torn = torn
        self.failed = 0

    def _act(self, name: str, number: int, real: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        if not self.at or number < self.at or (number > self.at and not self.onwards):
            return real()
        with self._lock:
            self.failed += 1
        if name == "sqlite":
            import sqlite3

            return args[0](sqlite3.OperationalError(_SQLITE_SAYS.get(self.error, "disk I/O error")))
        if name == "access":
            return False
        if name == "close":
            real()
        elif self.torn:
            _write_half(name, args)
        raise OSError(self.error, os.strerror(self.error))


class SlowIO(_Tap):
    """Adds ``seconds`` to every matching call, as a network file system would."""

    def __init__(self, seconds: float, *, only: Collection[str] = OPERATIONS) -> None:
        super().__init__(only)
        self.seconds = seconds

    def _act(self, name: str, number: int, real: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        time.sleep(self.seconds)
        return real()


class KillingIO(_Tap):
    """Ends this process with SIGKILL at the ``at``-th matching call: just before it or, with ``after``, just after.

    With ``torn``, a write is half done by then. For a forked child: nothing of the
    process survives, no ``finally`` runs.
    """

    def __init__(self, at: int, *, after: bool = False, torn: bool = False, only: Collection[str] = OPERATIONS) -> None:
        super().__init__(only)
        self.at = at
        self.after = after
        self.torn = torn

    def _act(self, name: str, number: int, real: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        if number != self.at:
            return real()
        if self.after:
            real()
        elif self.torn:
            _write_half(name, args)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable: SIGKILL is not survived")


class _BrokenConnection:
    """An SQLite connection on which every statement fails."""

    def __init__(self, error: sqlite3.Error) -> None:
        self._error = error

    def execute(self, *_: object) -> None:
        raise self._error


def _write_half(name: str, args: tuple[Any, ...]) -> None:
    """Do half of a write that is about to fail; nothing for any other call."""
    if name == "writev":
        whole = b"".join(args[1])
        os.write(args[0], whole[: len(whole) // 2])
    elif name == "write":
        os.write(args[0], args[1][: len(args[1]) // 2])
    elif name == "pwrite":
        os.pwrite(args[0], args[1][: len(args[1]) // 2], args[2])
