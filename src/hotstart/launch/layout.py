"""Lays entries out as files: several threads read, check and write into a directory of their own, and what is whole
is moved from there to where it belongs."""

from __future__ import annotations

import os
import threading
from time import time_ns

from ..store import files
from . import parcel, places, state
from .child import asked_to_stop
from .clone import can_clone, share_with_store
from .inventory import label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .inventory import Group
    from .session import Session

#: Threads that read, unpack and write. More than one a core wait for each other in the file system.
THREADS = min(8, os.cpu_count() or 1)

#: Why a group was not laid out, when somebody asked us to stop.
INTERRUPTED = "interrupted"


class Work:
    """Parts to unpack, shared by threads; ``done`` and ``failed`` groups afterwards."""

    def __init__(self, session: Session, staging: str, groups: list[Group]) -> None:
        self.session = session
        self.staging = staging
        self._parts = [(group, part) for group in reversed(groups) for part in reversed(range(group.parts))]
        self._groups = groups
        self._written: dict[str, list[str]] = {}
        self._lock = threading.Lock()
        store = session.store
        self._share = store is not None and can_clone(f"{store.root}/tmp", state.directory(session.home))
        self.directories: set[str] = set()
        self._origins: dict[str, dict[str, tuple[str, str]]] = {}
        self.failed: dict[str, str] = {}
        self.done: list[str] = []

    def run(self) -> None:
        session = self.session
        assert session.stores is not None  # opened here, before the threads
        threads = [threading.Thread(target=self._drain) for _ in range(min(THREADS, len(self._parts)) - 1)]
        for thread in threads:
            thread.start()
        self._drain()
        for thread in threads:
            thread.join()
        for group in self._groups:
            name = label(group.framework, group.name)
            if name in self.failed:
                for path in self._written.get(name, ()):
                    places.unlink(path)
            else:
                self.done.append(name)

    def origins(self) -> dict[str, tuple[str, str]]:
        """Of what was laid out, the files that were not made here, by their path under the root: who made them."""
        return {path: origin for name in self.done for path, origin in self._origins.get(name, {}).items()}

    def _drain(self) -> None:
        while True:
            try:
                group, part = self._parts.pop()
            except IndexError:
                return
            name = label(group.framework, group.name)
            if name in self.failed:
                continue
            try:
                if asked_to_stop():
                    raise parcel.BadParcelError(INTERRUPTED)
                self._unpack(group, part, name)
            except (parcel.BadParcelError, OSError) as error:
                with self._lock:
                    self.failed[name] = str(error)

    def _unpack(self, group: Group, part: int, name: str) -> None:
        row = self.session.rows[group.framework]
        entry = self.session.entry(parcel.key(group.framework, group.name, part).digest)
        if entry is None:
            raise parcel.BadParcelError("is damaged or was evicted")
        about = entry.meta
        if (about.get("group"), about.get("part"), about.get("parts")) != (group.name, part, group.parts):
            raise parcel.BadParcelError("belongs to another capture")
        base = f"{self.staging}/{row.directory}"
        written = self._written.setdefault(name, [])
        origin = entry.origin()
        for file in parcel.unpack(row, self.session.root, entry, about):
            if origin is not None:
                self._origins.setdefault(name, {})[f"{row.directory}/{file.path}"] = origin
            path = f"{base}/{file.path}"
            written.append(path)
            self._write(path, file, row.times)
            if file.large and self._share:
                share_with_store(self.session.store, file.data, path)

    def _write(self, path: str, file: parcel.Unpacked, times: bool) -> None:
        place = path[: path.rindex("/")]
        if place not in self.directories:
            files.makedirs(place)
            while place not in self.directories and len(place) > len(self.staging):
                self.directories.add(place)
                place = os.path.dirname(place)
        mode = 0o700 if file.executable else 0o600
        fd = files.open(path, files.CREATE, mode)
        try:
            if file.data:
                done = files.write(fd, file.data)
                while done < len(file.data):
                    done += files.write(fd, file.data[done:])
            if times:
                files.utime(fd, ns=(file.modified, file.modified))
        finally:
            files.close(fd)


def age(directories: set[str]) -> None:
    """Set the times of new directories a little back, so that whatever changes them from now on shows."""
    then = time_ns() - 2 * state.TICK_NS
    for path in directories:
        try:
            files.utime(path, ns=(then, then))
        except OSError:
            continue  # then it is gone through again at the end, that is all


def merge(source: str, target: str, replaced: set[str], inside: str = "") -> int:
    """Move what is below ``source`` to ``target``; how many files could not be moved.

    A directory that is not there yet is moved whole. A file that is there stays, unless its
    path is in ``replaced``: the framework may have written it, and it is as good.
    """
    left = 0
    try:
        with os.scandir(source) as items:
            listed = list(items)
    except OSError:
        return 0  # nothing was staged
    for item in listed:
        path = f"{inside}{item.name}"
        there = f"{target}/{item.name}"
        try:
            if not item.is_dir(follow_symlinks=False):
                _put(item.path, there, path in replaced)
            elif os.path.islink(there):
                left += 1  # somebody's own arrangement: nothing is written through it
            elif not _moved(item.path, there):
                left += merge(item.path, there, replaced, f"{path}/")
        except OSError:
            left += 1
    return left


def _moved(source: str, target: str) -> bool:
    """Whether the whole directory could be moved: nothing was there, or an empty directory."""
    try:
        os.rename(source, target)
    except OSError:
        if not os.path.isdir(target):
            raise
        return False
    return True


def _put(source: str, target: str, replace: bool) -> None:
    if replace:
        os.rename(source, target)
        return
    try:
        # A link fails where a rename would overwrite. The other name goes at once: no file stays linked.
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        return
    except OSError:
        if not os.path.lexists(target):
            os.rename(source, target)  # a file system without links
        return
    os.unlink(source)
