"""Handing a program to a helper: who may, whether there is room for it, and the process that outlives this one.

One folder and one lock file for each key, under ``HOTSTART_HOME/torch/jobs``. Whoever
holds the lock exports; the lock then goes to the helper, which inherits the open file, so
it is held until the helper ends, however it ends, and not a moment longer. Of eight ranks
that start together one exports and seven find the lock taken.

Beside the folder: ``KEY.tries`` counts helpers that were started, so that one that dies
each time is not started for ever, and ``KEY.failed`` says why a helper gave up, so that
the same is not tried again with the same compiler.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time

from ..keys.digest import digest_of
from . import record
from .reasons import NotHotError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..cache import Cache
    from ..keys.key import Key

#: Helpers started for one key before it is left alone: they were killed, each time.
_TRIES = 3
#: Host memory that an Inductor compile wants for itself, and device memory for trying kernels.
_HOST_BYTES, _DEVICE_BYTES = 2 << 30, 1 << 30
#: A folder without a helper that is older than this is removed.
_STALE = 86400.0


class Job:
    """The right to build the package of one key, held through a locked file."""

    __slots__ = ("fd", "folder", "key")

    def __init__(self, key: Key, folder: str, fd: int) -> None:
        self.key = key
        self.folder = folder
        self.fd = fd

    def release(self) -> None:
        """Let others try; the lock file goes while it is still ours."""
        if self.fd >= 0:
            _remove(f"{self.folder}.lock")
            os.close(self.fd)
            self.fd = -1

    def start(self, cache: Cache, wait: bool) -> None:
        """Start the helper and give it the lock; with ``wait``, stay until it has ended. Raises NotHotError."""
        import subprocess
        from threading import Thread

        if not sys.executable:
            raise NotHotError("this process does not know its Python", "use warm() from an ordinary one")
        _write(f"{self.folder}.tries", str(_tries(self.folder) + 1))
        _write(f"{self.folder}/cache.json", json.dumps(_describe(cache)))
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


def folder_of(cache: Cache, key: Key) -> str:
    return f"{record.directory()}/jobs/{key.digest[:40]}-{digest_of((cache.path or '').encode())[:8]}"


def claim(cache: Cache, key: Key) -> Job | str:
    """The job, when it is ours to do; otherwise why it is not."""
    folder = folder_of(cache, key)
    failed = failure(folder)
    if failed:
        return f"it was tried before: {failed}"
    if _tries(folder) >= _TRIES:
        return f"{_TRIES} helpers were killed before they were done"
    try:
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        fd = _lock(f"{folder}.lock")
    except OSError as error:
        return f"no helper can be started ({error.strerror})"
    if fd is None:
        return "another process is building it"
    shutil.rmtree(folder, ignore_errors=True)
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


def failure(folder: str) -> str:
    """Why the last helper gave up, if it did so with the compiler that is set now."""
    try:
        with open(f"{folder}.failed") as file:
            noted = json.load(file)
    except (OSError, ValueError):
        return ""
    return str(noted["reason"]) if noted.get("cxx") == os.environ.get("CXX", "") else ""


def fail(folder: str, reason: str) -> None:
    _write(f"{folder}.failed", json.dumps({"reason": reason, "cxx": os.environ.get("CXX", "")}))


def finish(folder: str) -> None:
    """The helper is done, well or not: nothing of the folder is needed any more."""
    shutil.rmtree(folder, ignore_errors=True)
    _remove(f"{folder}.tries")
    _remove(f"{folder}.lock")


def sweep() -> None:
    """Remove what helpers that were killed long ago have left."""
    jobs = f"{record.directory()}/jobs"
    try:
        names = [entry.name for entry in os.scandir(jobs)]
    except OSError:
        return
    for name in names:
        path = f"{jobs}/{name}"
        try:
            if not os.path.isdir(path) or time.time() - os.stat(path).st_mtime < _STALE:
                continue
            fd = _lock(f"{path}.lock")
            if fd is not None:
                shutil.rmtree(path, ignore_errors=True)
                _remove(f"{path}.lock")
                os.close(fd)
        except OSError:
            continue  # somebody else was faster


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


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        pass  # what is lost is the memory of a failure: it will be tried again


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it is gone already
