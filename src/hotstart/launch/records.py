"""What each run did, kept for ``why`` and ``stats``: one small file a run, the oldest dropped.

    HOME/runs/ID      magic "hotR1\\n", 16 bytes XXH3-128 of the rest, the record in the
                      encoding of ``keys.digest``

Not JSON: importing ``json`` costs a third of what ``hotstart run`` may. Written under a
temporary name and renamed, so a record is whole or absent; one that does not check is
passed over and counted. Nothing here raises for what the disk does: a run is never
disturbed by its own record.

A record is plain data:

    id, name, command (list), started (seconds since the epoch), seconds, status, version
    frameworks   name → hits, new, restored, bytes, seconds_saved, left_alone, rebuilt
    units        list of framework, unit, name, event ("hit", "new", "restored", "damaged"), cost
    remote       entries, bytes, present, failed, requests of a pull before the start, if there was one
    context      what the results depended on, see ``launch.context``
"""

from __future__ import annotations

import os
from time import time_ns

from xxhash import xxh3_128_digest

from ..errors import UncacheableError, UsageError
from ..keys.digest import decode, encode
from ..store import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Record = dict[str, Any]

#: How many runs are remembered. A record is a few kilobytes, and explanations look at the latest few.
KEPT = 256

#: Beyond this many more the oldest are removed: not at every run, which would list the directory for one file.
_SLACK = 32

#: A record with more units than this keeps only the first: it is for people to read.
MOST_UNITS = 20_000

_MAGIC = b"hotR1\n"
_LONGEST = 64 << 20

#: The record this process wrote last, also when it could not be kept.
written: Record | None = None


def new_id() -> str:
    """The name of a run: sorts by time, and is nobody else's."""
    return f"{time_ns():016x}-{files.unique_name()}"


def directory(home: str) -> str:
    return f"{home}/runs"


def write(home: str, record: Record) -> bool:
    """Keep ``record`` and add its numbers to the totals; whether it was kept.

    ``record["id"]`` is given one if it has none; secrets on the command line are hidden.
    Raises UsageError for what is not plain data, which is a mistake of the caller; whatever
    the disk does, False.
    """
    global written
    record.setdefault("id", new_id())
    units = record.get("units") or []
    if len(units) > MOST_UNITS:
        record = {**record, "units": units[:MOST_UNITS], "units_left_out": len(units) - MOST_UNITS}
    if record.get("command"):
        from .context import hide

        record = {**record, "command": hide(record["command"])}
    written = record
    try:
        body = encode(record)
    except UncacheableError as error:
        raise UsageError(f"a record is plain data: {error}") from None
    kept = _write(directory(home), record["id"], body)
    from .totals import add

    add(home, record.get("frameworks") or {})
    return kept


def _write(place: str, name: str, body: bytes) -> bool:
    if not _is_name(name):
        raise UsageError(f"the id of a run is made by new_id(), not {name!r}")
    temporary = f"{place}/.{files.unique_name()}"
    pieces = [_MAGIC, xxh3_128_digest(body), body]
    try:
        try:
            fd = files.open(temporary, files.CREATE, files.PRIVATE_FILE)
        except FileNotFoundError:
            files.makedirs(place)
            fd = files.open(temporary, files.CREATE, files.PRIVATE_FILE)
        try:
            files.write_all(fd, pieces, sum(map(len, pieces)))
        finally:
            files.close(fd)
        files.rename(temporary, f"{place}/{name}")
    except OSError:
        _remove(temporary)
        return False
    _prune(place)
    return True


def _prune(place: str) -> None:
    """Drop the oldest. Two that prune at once remove the same files, which is fine."""
    try:
        names = files.listdir(place)
    except OSError:
        return  # it is only a few files too many
    if len(names) <= KEPT + _SLACK:
        return
    whole = sorted(name for name in names if _is_name(name))
    for name in whole[:-KEPT]:
        _remove(f"{place}/{name}")
    limit = time_ns() - 3600 * 10**9
    for name in names:
        if name.startswith("."):
            try:
                if files.stat(f"{place}/{name}", follow_symlinks=False).st_mtime_ns < limit:
                    _remove(f"{place}/{name}")  # of a writer that died
            except OSError:
                continue


def read(home: str, id: str) -> Record | None:
    """The record called ``id``, or the only one whose id begins with it; None when there is none that checks."""
    names = matching(home, id)
    return _read(f"{directory(home)}/{names[0]}") if len(names) == 1 else None


def matching(home: str, beginning: str) -> list[str]:
    """The ids of the runs that begin so, oldest first; the one that is exactly so comes alone."""
    if not _is_name(beginning):
        return []
    names = [name for name in _names(directory(home)) if name.startswith(beginning)]
    return [beginning] if beginning in names else names


class Found(list["Record"]):
    """Records, newest first; ``damaged`` counts those that were passed over."""

    damaged = 0


def last(home: str, name: str | None = None, n: int = 1) -> Found:
    """The ``n`` newest records, newest first, of the workload ``name`` if that is given."""
    place = directory(home)
    found = Found()
    for file in reversed(_names(place)):
        if len(found) >= n:
            break
        record = _read(f"{place}/{file}")
        if record is None:
            found.damaged += 1
        elif name is None or record.get("name") == name:
            found.append(record)
    return found


def clear(home: str) -> int:
    """Forget every run; how many there were."""
    names = _names(directory(home))
    for name in names:
        _remove(f"{directory(home)}/{name}")
    return len(names)


def _names(place: str) -> list[str]:
    try:
        return sorted(name for name in files.listdir(place) if _is_name(name))
    except OSError:
        return []


def _is_name(name: str) -> bool:
    return bool(name) and name.isascii() and name.replace("-", "").isalnum()


def _read(path: str) -> Record | None:
    try:
        fd = files.open(path, files.READ)
        try:
            size = files.fstat(fd).st_size
            if size > _LONGEST:
                return None
            data = files.read_all(fd, size)
        finally:
            files.close(fd)
    except OSError:
        return None
    body = data[len(_MAGIC) + 16 :]
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : len(_MAGIC) + 16] != xxh3_128_digest(body):
        return None
    try:
        record = decode(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # gone already, or not ours to remove: it is only a record
