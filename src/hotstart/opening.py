"""The cache as configured: ``open`` for whoever wants one of its own, ``shared`` for all who are given none."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .cache import Cache

_shared: Cache | None = None


def shared() -> Cache:
    """The configured cache, opened once for the whole process: what compilers use when they are given none."""
    global _shared
    if _shared is None:
        _shared = open()
    return _shared


def open(**overrides: Any) -> Cache:  # noqa: A001  # hotstart.open, by contract
    """The cache as configured: command line > ``HOTSTART_*`` > project > user > default.

    ``overrides`` are arguments of ``Cache`` that win over all of them.
    """
    from .config import load

    return load().open(**overrides)
