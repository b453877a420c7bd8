"""Puts right the files that hold the path they lie at: the functions that rows of the table name.

Each is called as ``function(data, old, new)``: the bytes of a file written when the
framework's directory was ``old``, to be read where it is ``new``. What is not as it
should be raises ValueError, and the unit is then damaged: a file that names a place
outside its own directory must not be handed to a framework that would open it.

A store keeps such files with ``PLACE`` as their directory, so that equal compiles
have equal content wherever they were made.
"""

from __future__ import annotations

from .units import pattern_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .contract import Framework

#: Stands for the framework's directory in what is stored. No directory is called that.
PLACE = "/@hotstart@"


def relocated(framework: Framework, path: str, data: bytes, old: str, new: str) -> bytes:
    """``data``, the file at ``path``, as it has to be when the directory ``old`` is at ``new`` instead.

    Returned as it is if no rule of the row is for it. Raises ValueError if the file
    is not what the rule expects.
    """
    for rewrite in framework.rewrites:
        if pattern_of(rewrite.pattern).fullmatch(path) is not None:
            data = FUNCTIONS[rewrite.function](data, old.rstrip("/"), new.rstrip("/"))
    return data


def holds_paths(framework: Framework, path: str) -> bool:
    """Whether a rule of the row is for the file at ``path``: those files alone need ``relocated``."""
    return any(pattern_of(rewrite.pattern).fullmatch(path) is not None for rewrite in framework.rewrites)


def triton_group(data: bytes, old: str, new: str) -> bytes:
    """Triton's list of a kernel's files: ``{"child_paths": {"add.cubin": "<directory>/<key>/add.cubin"}}``."""
    import json

    group = json.loads(data)
    children = group.get("child_paths") if isinstance(group, dict) else None
    if not isinstance(children, dict):
        raise ValueError("not a list of a kernel's files")
    moved = {}
    for name, place in children.items():
        if not isinstance(place, str) or not place.startswith(old + "/"):
            raise ValueError(f"names a file outside its directory: {place!r}")
        inside = place[len(old) + 1 :]
        parts = inside.split("/")
        if parts[-1] != name or not {"", ".", ".."}.isdisjoint(parts):
            raise ValueError(f"names a file outside its directory: {place!r}")
        moved[name] = f"{new}/{inside}"
    return json.dumps({**group, "child_paths": moved}).encode()


FUNCTIONS: dict[str, Callable[[bytes, str, str], bytes]] = {"triton_group": triton_group}
