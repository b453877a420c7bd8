"""One file a framework: what hotstart knows about each compiler.

``hotstart.compilers.nvrtc`` and its siblings load when they are named: some import
the framework they are about.
"""

from __future__ import annotations

_MODULES = ("cuda_core", "frameworks", "handles", "nvrtc", "options", "sources", "triton", "tuning")


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return __import__(f"{__name__}.{name}", fromlist=[name])


def __dir__() -> list[str]:
    return list(_MODULES)
