"""Which directories belong to a CUDA toolkit, and which files in them are the toolkit's.

A toolkit's headers are not each looked at again, so a directory has to prove that it is
one: by name alone many a project would pass. Everything that proves nothing, conda's
toolkits too, is treated as the user's own, file by file.
"""

from __future__ import annotations

import os
import re

_WHEEL = re.compile(r"(.*/(?:site|dist)-packages)/(nvidia/[^/]+/include)(?=/|$)")
_INSTALLED = re.compile(r"(.*?)(?:/targets/[^/]+)?/include(?=/|$)")


class Toolkit:
    """The include directory of one toolkit."""

    __slots__ = ("_recorded", "marker", "root")

    #: The directory.
    root: str
    #: The file that says which release it is; "" for a wheel.
    marker: str
    #: What wheels recorded of their files under ``root``, relative to it; None where every file belongs.
    _recorded: frozenset[str] | None

    def __init__(self, root: str, marker: str = "", recorded: frozenset[str] | None = None) -> None:
        self.root = root
        self.marker = marker
        self._recorded = recorded

    def covers(self, directory: str) -> bool:
        """Whether ``directory`` is the toolkit's or under it."""
        path = os.path.normpath(directory)
        return path == self.root or path.startswith(self.root + "/")

    def owns(self, path: str) -> bool:
        """Whether the file at ``path`` came with the toolkit. One that a user put among its files did not."""
        path = os.path.normpath(path)
        if not path.startswith(self.root + "/"):
            return False
        return self._recorded is None or path[len(self.root) + 1 :] in self._recorded


_wheels: dict[str, tuple[object, frozenset[str]]] = {}


def toolkit(directory: str) -> Toolkit | None:
    """The toolkit that ``directory`` is or lies in; None when it is none.

    Those are NVIDIA's wheels, as far as their RECORD files list what is in them,
    and what its installers leave: a ``version.json`` that states a release of CUDA,
    and ``cuda.h``.
    """
    path = os.path.normpath(directory)
    wheel = _WHEEL.match(path)
    if wheel:
        recorded = _recorded(wheel[1], wheel[2])
        return Toolkit(wheel[0], "", recorded) if recorded else None
    installed = _INSTALLED.match(path)
    if installed:
        marker = f"{installed[1]}/version.json"
        if os.path.isfile(f"{installed[0]}/cuda.h") and _states_release(marker):
            return Toolkit(installed[0], marker)
    return None


def _states_release(marker: str) -> bool:
    import json

    try:
        with open(marker, "rb") as file:
            stated = json.loads(file.read(1 << 20))
    except (OSError, ValueError):
        # Not there, or not what NVIDIA writes.
        return False
    cuda = stated.get("cuda") if isinstance(stated, dict) else None
    return isinstance(cuda, dict) and isinstance(cuda.get("version"), str)


def _recorded(site: str, include: str) -> frozenset[str]:
    """The files under ``include`` that NVIDIA's wheels in ``site`` recorded, relative to it."""
    records = []
    try:
        for name in sorted(os.listdir(site)):  # noqa: PTH208
            if name.startswith("nvidia_") and name.endswith(".dist-info"):
                status = os.stat(f"{site}/{name}/RECORD")
                records.append((f"{site}/{name}/RECORD", status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError:
        # A wheel is being installed or removed: nothing is proved.
        return frozenset()
    known = _wheels.get(f"{site}/{include}")
    if known is not None and known[0] == records:
        return known[1]
    found: set[str] = set()
    prefix = f"{include}/"
    for path, *_ in records:
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                found.update([line[len(prefix) :].partition(",")[0] for line in file if line.startswith(prefix)])
        except OSError:
            continue
    _wheels[f"{site}/{include}"] = records, frozenset(found)
    return frozenset(found)
