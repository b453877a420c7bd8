"""Counters that outlive their processes: what ``stats`` shows of all runs together.

    HOME/totals       magic, check, and the sums by framework, in the encoding of ``keys.digest``
    HOME/totals.lock  held while they are changed

A run adds its numbers once, at its end: one lock, one small read, one small write, one
rename. Exact over any number of processes that end by themselves. A process that is
killed before it adds, or a disk that takes no more, loses that one run's numbers and
none of the others'; what is lost is never made up. Reading takes no lock.
"""

from __future__ import annotations

import time

from xxhash import xxh3_128_digest

from ..errors import UncacheableError
from ..keys.digest import decode, encode
from ..store import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_MAGIC = b"hotT1\n"

#: How long a run waits for its turn to add. The holder needs a millisecond.
_WAIT = 1.0
_PAUSE = 2e-3

#: What is summed, of everything a record says of a framework.
SUMMED = ("hits", "new", "restored", "bytes", "seconds_saved", "rebuilt")


def add(home: str, frameworks: Mapping[str, Mapping[str, Any]], runs: int = 1) -> bool:
    """Add one run's numbers; whether that could be done. Never raises."""
    lock = _acquire(home)
    if lock is None:
        return False
    try:
        sums = read(home)
        if sums is None:
            sums = {"since": time.time(), "runs": 0, "frameworks": {}}
        sums["runs"] += runs
        for name, numbers in frameworks.items():
            if not isinstance(numbers, dict):
                continue
            into = sums["frameworks"].setdefault(name, {})
            for label in SUMMED:
                value = numbers.get(label) or 0
                amount = len(value) if isinstance(value, (list, tuple)) else value
                if amount:
                    into[label] = into.get(label, 0) + amount
            if numbers.get("hits") or numbers.get("new") or numbers.get("restored"):
                into["runs"] = into.get("runs", 0) + 1
        return _write(home, sums)
    except (OSError, UncacheableError, TypeError):
        return False  # a number that is none, or a disk that takes nothing: the run goes on uncounted
    finally:
        files.close_quietly(lock)


def read(home: str) -> dict[str, Any] | None:
    """``since``, ``runs`` and ``frameworks`` (name → sums); None where nothing was ever added or it does not check."""
    try:
        fd = files.open(f"{home}/totals", files.READ)
        try:
            data = files.read_all(fd, files.fstat(fd).st_size)
        finally:
            files.close(fd)
        body = data[len(_MAGIC) + 16 :]
        if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : len(_MAGIC) + 16] != xxh3_128_digest(body):
            return None
        sums = decode(body)
    except (OSError, ValueError):
        return None
    good = isinstance(sums, dict) and isinstance(sums.get("frameworks"), dict) and isinstance(sums.get("runs"), int)
    return sums if good else None


def clear(home: str) -> None:
    """Begin at zero."""
    lock = _acquire(home)
    if lock is None:
        return
    try:
        files.unlink(f"{home}/totals")
    except OSError:
        pass  # there was nothing
    finally:
        files.close_quietly(lock)


def _acquire(home: str) -> int | None:
    try:
        try:
            fd = files.open(f"{home}/totals.lock", files.UPDATE, files.PRIVATE_FILE)
        except FileNotFoundError:
            files.makedirs(home)
            fd = files.open(f"{home}/totals.lock", files.UPDATE, files.PRIVATE_FILE)
    except OSError:
        return None
    deadline = time.monotonic() + _WAIT
    while True:
        try:
            files.flock(fd, files.LOCK_EX | files.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(_PAUSE)
                continue
        except OSError:
            pass  # no locks here: better uncounted than counted wrongly
        files.close_quietly(fd)
        return None


def _write(home: str, sums: dict[str, Any]) -> bool:
    body = encode(sums)
    temporary = f"{home}/.{files.unique_name()}"
    fd = files.open(temporary, files.CREATE, files.PRIVATE_FILE)
    try:
        try:
            pieces = [_MAGIC, xxh3_128_digest(body), body]
            files.write_all(fd, pieces, sum(map(len, pieces)))
        finally:
            files.close(fd)
        files.rename(temporary, f"{home}/totals")
    except OSError:
        files.unlink(temporary)
        raise
    return True
