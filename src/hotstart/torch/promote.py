"""The helper: ``python -m hotstart.torch.promote FOLDER FD``. Builds, verifies and publishes one package.

Runs detached from the process that started it, at the lowest priority, and holds the lock
of the key through the descriptor FD. It may be killed at any instruction: the entry
appears whole, at the very end and only after ``verify`` has run it, or not at all, and the
lock is free as soon as it is gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from base64 import b64decode

from . import jobs, marks, record
from .reasons import NotHotError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..drafting import Compiled

#: How long a package may take to be loaded and called twice.
_VERIFY_SECONDS = 600


def main(folder: str) -> int:
    _step_back()
    try:
        with open(f"{folder}/job.json") as file:
            job = json.load(file)
        with open(f"{folder}/cache.json") as file:
            place = json.load(file)
    except (OSError, ValueError):
        jobs.finish(folder)
        return 1  # it was not handed over to its end
    from ..cache import Cache
    from ..keys.key import Key, _restore
    from ..opening import shared

    cache = Cache(place.pop("path"), **place) if place else shared()
    told = job["key"]
    key = _restore(Key, told["kind"], told["name"], told["digest"], [b64decode(part) for part in told["parts"]])
    started = time.monotonic()
    try:
        entry = cache.get_or_compile(key, lambda: _build(folder, job))
        seconds = round(time.monotonic() - started, 1)
        if key not in cache:
            raise NotHotError("the store did not take the package", "hotstart stats says why")
        record.note("published", key.name, key.digest, seconds=seconds, bytes=len(entry["package"]))
    except Exception as error:
        reason = str(error) if isinstance(error, NotHotError) else f"{type(error).__name__}: {error}"
        reason = reason.strip().splitlines()[0][:500] if reason.strip() else type(error).__name__
        marks.fail(folder, reason)
        record.note("failed", key.name, key.digest, reason, getattr(error, "advice", ""))
        if not isinstance(error, NotHotError):
            import traceback

            traceback.print_exc()
        jobs.finish(folder)
        return 1
    jobs.finish(folder)
    jobs.sweep()
    cache.close()
    return 0


def _step_back() -> None:
    try:
        os.nice(15)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (OSError, AttributeError):
        pass  # not allowed, or not Linux: it then competes like anybody


def _build(folder: str, job: dict[str, Any]) -> Compiled:
    """The package, tried. Raises NotHotError with the reason why there is none."""
    from ..drafting import Compiled

    device = (job["device"][0], job["device"][1])
    short = jobs.short_of_memory(job["bytes"], device)
    if short:
        raise NotHotError(short)
    for compiler in _compilers():
        if compiler:
            os.environ["CXX"] = compiler
        _compile(folder, job)
        crashed = _verify(folder)
        if not crashed:
            break
    else:
        raise NotHotError(
            f"the package crashes when it is loaded ({crashed}), CXX is {os.environ.get('CXX', 'not set')}",
            "set CXX to a compiler that links libstdc++ dynamically, such as /usr/bin/g++",
        )
    with open(f"{folder}/verified.json") as file:
        verified = json.load(file)
    with open(f"{folder}/package.pt2", "rb") as file:
        package = file.read()
    return Compiled({"package": package}, meta={"about": json.dumps({**job["about"], **verified})})


def _compilers() -> list[str]:
    """The compiler that is set, and the system's own for when that one's packages cannot be loaded."""
    found = [""]
    system = "/usr/bin/g++"
    if os.environ.get("CXX", system) != system and os.path.exists(system):
        found.append(system)
    return found


def _compile(folder: str, job: dict[str, Any]) -> None:
    """In a process of its own: Inductor reads CXX once, and a compile that crashes must leave somebody to say so."""
    made = subprocess.run(
        [sys.executable, "-m", "hotstart.torch.build", folder], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    sys.stderr.write(made.stderr[-20000:])
    if made.returncode:
        raise NotHotError(f"AOTInductor cannot build it ({_last(made.stdout) or _signal(made.returncode)})")


def _verify(folder: str) -> str:
    """How the test of the package crashed; "" when it passed. Raises NotHotError when it failed."""
    try:
        tried = subprocess.run(
            [sys.executable, "-m", "hotstart.torch.verify", folder],
            # What is unpacked here goes with the folder, however it ends. Not so for the compile:
            # Inductor keeps 150 MB of precompiled headers there, for all.
            env={**os.environ, "TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERIFY_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise NotHotError(f"the package was not done after {_VERIFY_SECONDS} seconds") from None
    sys.stderr.write(tried.stderr[-20000:])
    if tried.returncode < 0:
        return _signal(tried.returncode)
    if tried.returncode:
        raise NotHotError(_last(tried.stdout) or "the test of the package failed")
    return ""


def _signal(status: int) -> str:
    import signal

    try:
        return signal.Signals(-status).name if status < 0 else f"status {status}"
    except ValueError:
        return f"status {status}"


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:400] if lines else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
