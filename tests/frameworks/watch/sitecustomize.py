"""Imported by every Python process of a watched run: writes down each process that Python starts.

Some compilers are called by absolute path, out of a wheel, where a stand-in on PATH
would never be asked.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOG = os.environ.get("HOTSTART_TEST_LOG", "")
EVENTS = {"subprocess.Popen": 1, "os.posix_spawn": 1, "os.exec": 1, "os.system": 0}


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    place = EVENTS.get(event)
    if place is None:
        return
    words = arguments[place]
    words = [words] if isinstance(words, (str, bytes)) else words
    line = "\x1f".join(os.fsdecode(word).replace("\n", " ") for word in words) + "\n"
    log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(log, line.encode("utf-8", "surrogateescape"))
    finally:
        os.close(log)


if LOG:
    sys.addaudithook(watch)
