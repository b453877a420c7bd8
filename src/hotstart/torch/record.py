"""What happened to each model, for ``hotstart why`` and ``hotstart stats``: lines of JSON in one file.

``HOTSTART_HOME/torch/record.jsonl`` has one object a line:

    time     seconds since the epoch
    pid      the process that wrote it
    event    hit          a package was loaded and served the call
             plain        runs as plain torch.compile, because of ``reason``
             handed       exported and handed to a helper
             published    a helper built, verified and stored the package; ``seconds`` it took
             failed       a helper could not; ``reason``
             skipped      not handed over this time; ``reason``
             quarantined  a check found another result than eager's; the entry was removed
    name     the model or function, for people
    key      digest of the key, or "" where none could be made
    reason   a sentence, or ""
    advice   what would change it, or ""

A line that is cut short (a power cut) is passed over. At one megabyte the file is
moved to ``record.jsonl.1``, so that it never grows without bound. Writing it is best
effort: a disk that does not take it changes nothing else, and is counted nowhere
because there is nobody else to tell.
"""

from __future__ import annotations

import os
import time

from ..config import home_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIMIT = 1 << 20


def directory() -> str:
    """Where this part keeps its files: ``HOTSTART_HOME/torch``."""
    return f"{home_directory(os.environ.get('HOTSTART_HOME', ''))}/torch"


def note(event: str, name: str, key: str = "", reason: str = "", advice: str = "", **more: Any) -> None:
    """Append a line. Whole lines only: one write to a file opened for appending."""
    import json

    line = {"time": round(time.time(), 3), "pid": os.getpid(), "event": event, "name": name, "key": key}
    line.update(reason=reason, advice=advice, **more)
    path = f"{directory()}/record.jsonl"
    try:
        os.makedirs(directory(), mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            os.write(fd, json.dumps(line).encode() + b"\n")
            if os.fstat(fd).st_size > _LIMIT:
                os.replace(path, f"{path}.1")
        finally:
            os.close(fd)
    except OSError:
        pass  # a full or read-only disk: the compile is what matters


def records() -> list[dict[str, Any]]:
    """Every line, oldest first; those that are damaged are left out."""
    import json

    found = []
    for name in ("record.jsonl.1", "record.jsonl"):
        try:
            with open(f"{directory()}/{name}", "rb") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                found.append(entry)
    return found
