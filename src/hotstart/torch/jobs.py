"""Handing a program to a helper: who may, whether there is room for it, and the process that outlives this one.

One folder and one lock file for each key, under ``HOTSTART_HOME/torch/jobs``. Whoever
holds the lock exports; the lock then goes to the helper, which inherits the open file, so
it is held until the helper ends, however it ends, and not a moment longer. Of eight ranks
that start together one exports and seven find the lock taken.

Beside the folder: ``KEY.tries`` counts those that began, exporting or as a helper, and
were not heard of again, so that one that dies each time is not begun for ever; ``KEY.failed``
(``marks``) says why a helper gave up. Whoever claims a job sweeps: folders that nobody
holds after an hour, and marks after a month.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time

from . import record
from .marks import failure, folder_of, write
from .reasons import NotHotError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..cache import Cache
    from ..keys.key import Key

#: Times that one key is begun before it is left alone: whoever was at it was killed, each time.
_TRIES = 3
#: Host memory that an Inductor compile wants for itself, and device memory for trying kernels.
_HOST_BYTES, _DEVICE_BYTES = 2 << 30, 1 << 30
#: Seconds after which a folder that nobody holds is removed, and a mark. A mark that is gone lets people try again.
_STALE, _FORGOTTEN = 3600.0, 30 * 86400.0


class Job:
    """The right to build the package of one key, held through a locked file."""

    __slots__ = ("fd", "folder", "key")

    def __init__(self, key: Key, folder: str, fd: int) -> None:
        self.key = key
        self.folder = folder
        self.fd = fd

    def release(self) -> None:
        """Let others try: nothing of ours stays, and the lock file goes while it is still ours."""
        if self.fd >= 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            _remove(f"{self.folder}.tries")
            _remove(f"{self.folder}.lock")
            os.close(self.fd)
            self.fd = -1

    def start(self, cache: Cache, wait: bool) -> None:
        """Start the helper and give it the lock; with ``wait``, stay until it has ended. Raises NotHotError."""
        import subprocess
        from threading import Thread

        if not sys.executable:
            raise NotHotError("this process does not know its Python", "use warm() from an ordinary one")
        write(f"{self.folder}/cache.json", json.dumps(_describe(cache)))
        with open(f"{self.folder}/log", "ab") as log:
            helper = subprocess.Popen(
                [sys.executable, "-m", "hotstart.torch.promote", self.folder, str(self.fd)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                pass_fds=(self.fd,),
                start_new_session=True,  # a Ctrl-C here, or the end of the terminal, is not for it
            )
        os.close(self.fd)
        self.fd = -1
        if wait:
            helper.wait()
        else:
            Thread(target=helper.wait, daemon=True).start()  # so that it does not stay behind as a zombie


def claim(cache: Cache, key: Key) -> Job | str:
    """The job, when it is ours to do; otherwise why it is not."""
    folder = folder_of(cache, key)
    failed = failure(folder)
    if failed:
        return f"it was tried before: {failed}"
    try:
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        fd = _lock(f"{folder}.lock")
    except OSError as error:
        return f"no helper can be started ({error.strerror})"
    if fd is None:
        return "another process is building it"
    if _tries(folder) >= _TRIES:  # asked with the lock: the last one may be at it still
        _remove(f"{folder}.lock")
        os.close(fd)
        return f"it was begun {_TRIES} times, and each time killed before it was done"
    shutil.rmtree(folder, ignore_errors=True)
    # Before the export: a process that is killed in it, for want of memory, must not be killed at every start.
    write(f"{folder}.tries", str(_tries(folder) + 1))
    sweep()
    return Job(key, folder, fd)


def short_of_memory(size: int, device: tuple[str, int]) -> str:
    """Why there is no room to build and test a package of a model of ``size`` bytes; "" when there is."""
    kind, index = device
    if kind == "cuda":
        import torch

        free = torch.cuda.mem_get_info(max(index, 0))[0]
        if free < size * 1.3 + _DEVICE_BYTES:
            return f"{free >> 20} MiB of GPU memory are free, and a test of the package takes {int(size * 1.3) >> 20}"
    wanted = _HOST_BYTES + (int(size * 1.3) if kind == "cpu" else 0)
    free = available()
    if free < wanted:
        return f"{free >> 20} MiB of memory are free, and building a package takes {wanted >> 20}"
    return ""


def available() -> int:
    """Bytes of memory that can be had without swapping; without Linux's word for it, enough."""
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass  # not Linux
    return 1 << 62


def finish(folder: str) -> None:
    """The helper is done, well or not: nothing of the folder is needed any more."""
    shutil.rmtree(folder, ignore_errors=True)
    _remove(f"{folder}.tries")
    _remove(f"{folder}.lock")


def sweep() -> None:
    """Remove what was left by those that were killed long ago; what somebody holds stays."""
    jobs = f"{record.directory()}/jobs"
    try:
        found = [(entry.path, entry.is_dir(), entry.stat().st_mtime) for entry in os.scandir(jobs)]
    except OSError:
        return  # there is none, or one of them has just gone: the next one sweeps
    now = time.time()
    for path, is_folder, changed in found:
        folder, _, kind = (path, "", "") if is_folder else path.rpartition(".")
        if now - changed < (_STALE if is_folder or kind == "lock" else _FORGOTTEN):
            continue
        try:
            fd = _lock(f"{folder}.lock")
        except OSError:
            continue  # not ours to remove
        if fd is not None:
            if is_folder:
                shutil.rmtree(path, ignore_errors=True)
            else:
                _remove(path)
            _remove(f"{folder}.lock")
            os.close(fd)


def _lock(path: str) -> int | None:
    """A descriptor that holds the lock; None while somebody else does. Raises OSError."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        # The last holder removed the name: a lock on a nameless file excludes nobody.
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)


def _describe(cache: Cache) -> dict[str, Any]:
    """How the helper opens the same cache: as configured, or by its directory."""
    from ..opening import shared

    if cache is shared():
        return {}
    return {"path": cache.path, "max_size": cache._arguments["max_size"], "policy": cache._arguments["policy"]}


def _environment() -> dict[str, str]:
    """This process's, so that it is the same torch with the same settings; low in everything else."""
    import hotstart

    found = dict(os.environ)
    places = [os.path.dirname(os.path.dirname(os.path.abspath(str(hotstart.__file__))))]
    places += [os.path.abspath(place) for place in found.get("PYTHONPATH", "").split(os.pathsep) if place]
    found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(places))
    found.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, min(8, (os.cpu_count() or 1) // 2))))
    found.pop("LD_PRELOAD", None)
    return found


def _tries(folder: str) -> int:
    try:
        with open(f"{folder}.tries") as file:
            return int(file.read() or 0)
    except (OSError, ValueError):
        return 0


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it is gone already
