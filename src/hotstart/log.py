"""One line on stderr when something should be known; nothing else.

``logging`` costs more to import than a hit takes, and a library that caches
compiles has little to say. ``HOTSTART_LOG`` sets the level; ``warning`` by default.
"""

from __future__ import annotations

import os
import sys

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "off": 100}
_said: set[str] = set()


def say(level: str, message: str, *, once: str = "") -> None:
    """Print ``hotstart: message`` if the level asks for it; with ``once``, only the first time for that name."""
    wanted = _LEVELS.get(os.environ.get("HOTSTART_LOG", "").lower(), 30)
    if _LEVELS[level] < wanted or once in _said:
        return
    if once:
        _said.add(once)
    try:
        print(f"hotstart: {message}", file=sys.stderr)
    except (OSError, ValueError, AttributeError):
        pass  # stderr is closed: there is nobody to tell
