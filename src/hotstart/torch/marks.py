"""Marks beside the folders of jobs: what was tried for a key, and what came of it.

``HOTSTART_HOME/torch/jobs/KEY.failed`` says why a package could not be built, so that the
same is not tried again with the same compiler; or that a check found it wrong, and then
which one it was, so that it is not served again should it come back from a remote store.
Here and not in ``jobs``, because a hit looks, and must import next to nothing.
"""

from __future__ import annotations

import os

from ..keys.digest import digest_of
from . import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..cache import Cache
    from ..keys.key import Key


def folder_of(cache: Cache, key: Key) -> str:
    return f"{record.directory()}/jobs/{key.digest[:40]}-{digest_of((cache.path or '').encode())[:8]}"


def failure(folder: str) -> str:
    """Why the last helper gave up, or what a check found, if that was with the compiler that is set now."""
    noted = _read(folder)
    return str(noted["reason"]) if noted and noted.get("cxx") == os.environ.get("CXX", "") else ""


def fail(folder: str, reason: str, package: bytes | None = None) -> None:
    """Note why there is no package; with ``package``, that this one is wrong."""
    import json

    noted = {"reason": reason, "cxx": os.environ.get("CXX", "")}
    if package is not None:
        noted["package"] = digest_of(package)
    os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
    write(f"{folder}.failed", json.dumps(noted))


def is_condemned(folder: str, package: bytes) -> bool:
    """Whether a check has found this very package to be wrong."""
    noted = _read(folder)
    return bool(noted) and noted.get("package") == digest_of(package)


def _read(folder: str) -> dict[str, Any]:
    try:
        with open(f"{folder}.failed") as file:
            import json

            noted = json.load(file)
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) and "reason" in noted else {}


def write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        pass  # what is lost is the memory of a failure: it will be tried again
