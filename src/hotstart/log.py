"""One line on stderr when something should be known; nothing else.

``logging`` costs more to import than a hit takes, and a library that caches
compiles has little to say. ``HOTSTART_LOG`` sets the level; ``warning`` by default.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "off": 100}
_said: set[str] = set()


def said() -> frozenset[str]:
    """The names of what was said once so far: whoever compares before and after knows whether a reason was given."""
    return frozenset(_said)


def note_said(names: Iterable[str]) -> None:
    """Another process has said these for us: once is enough."""
    _said.update(names)


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
