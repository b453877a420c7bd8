"""What has to happen to open caches when their process forks or ends."""

from __future__ import annotations

import atexit
import os
from weakref import WeakSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cache import Cache

_open: WeakSet[Cache] = WeakSet()


def keep_track(cache: Cache) -> None:
    """From now on ``cache`` hears of forks, and is closed at the end; nothing keeps it alive."""
    _open.add(cache)


def _all_open() -> list[Cache]:
    while True:
        try:
            return list(_open)
        except RuntimeError:
            continue  # another thread opened one meanwhile


def _before_fork() -> None:
    for cache in _all_open():
        cache.before_fork()


def _after_fork_in_parent() -> None:
    for cache in _all_open():
        cache.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for cache in _all_open():
        cache.after_fork_in_child()


def _at_exit() -> None:
    for cache in _all_open():
        cache.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)

atexit.register(_at_exit)
