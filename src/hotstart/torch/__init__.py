"""``hotstart.torch``: torch.compile that starts in milliseconds when it has been here before.

    compile         the face: a model or function that loads its package, or runs as torch.compile does
    mark_dynamic    let a dimension of an input vary without a package for each size
    warm            build the package now, for CI
    records         what was loaded, built and refused, and why

docs/torch.md says what a hit is, what the key holds and what falls back. The names load
on first use: the helper that builds packages has no need of torch itself.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .record import records as records
    from .wrapper import compile as compile
    from .wrapper import mark_dynamic as mark_dynamic
    from .wrapper import warm as warm

_HOMES = {"compile": "wrapper", "mark_dynamic": "wrapper", "warm": "wrapper", "records": "record"}

__all__ = ["compile", "mark_dynamic", "records", "warm"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hotstart.torch' has no attribute {name!r}")
    value = globals()[name] = getattr(__import__(f"hotstart.torch.{home}", fromlist=[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
