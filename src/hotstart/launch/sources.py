"""The program's own files, by name and digest: so that a miss can be put down to an edit."""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: What can change what is compiled: code, headers, and the settings people keep beside them.
_ENDINGS = (
    *(".py", ".pyi", ".pyx", ".pxd", ".cu", ".cuh", ".h", ".hh", ".hpp", ".hxx", ".inl", ".c", ".cc", ".cpp", ".cxx"),
    *(".cl", ".hip", ".ptx", ".ll", ".mlir", ".metal", ".toml", ".yaml", ".yml", ".json", ".cfg", ".ini"),
)
_SKIPPED = frozenset(
    (
        "__pycache__",
        "node_modules",
        "site-packages",
        "dist-packages",
        "build",
        "dist",
        "venv",
        "env",
        "wandb",
        "outputs",
    )
)

MOST_FILES = 2000
_MOST_BYTES = 32 << 20
_LARGEST = 1 << 20
_DEEPEST = 6


class Tree:
    """``digests``: relative name → digest. ``left_out``: why it is not everything, if so."""

    __slots__ = ("digests", "left_out")

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.left_out = ""


def files(paths: Iterable[str]) -> dict[str, str]:
    """Digests of single files, by base name; what cannot be read is left out."""
    found = {}
    for path in paths:
        digest = _digest(path)
        if digest:
            found[os.path.basename(path)] = digest
    return found


def tree(paths: Iterable[str], roots: Iterable[str], seconds: float) -> Tree:
    """The given files, and everything like source under ``roots``; bounded, and saying so when a bound was met.

    A home directory or ``/`` is not walked: a program started there does not own what is in it.
    """
    found = Tree()
    found.digests = files(paths)
    deadline = time.monotonic() + seconds
    budget = [MOST_FILES, _MOST_BYTES]
    seen: set[tuple[int, int]] = set()
    for root in dict.fromkeys(os.path.abspath(root) for root in roots):
        if root == "/" or root == os.path.expanduser("~") or root == (os.environ.get("TMPDIR") or "/tmp").rstrip("/"):
            found.left_out = f"{root} is not walked"
            continue
        _walk(root, "", 0, found, budget, deadline, seen)
    return found


def _walk(
    directory: str,
    prefix: str,
    depth: int,
    found: Tree,
    budget: list[int],
    deadline: float,
    seen: set[tuple[int, int]],
) -> None:
    try:
        with os.scandir(directory) as items:
            entries = sorted(items, key=lambda item: item.name)
    except OSError:
        return
    if prefix and any(item.name == "pyvenv.cfg" for item in entries):
        return  # installed, not written
    below = []
    for item in entries:
        name = item.name
        if name.startswith(".") or name in _SKIPPED or name.endswith(".egg-info"):
            continue
        try:
            info = item.stat()
        except OSError:
            continue
        if stat.S_ISDIR(info.st_mode):
            if (info.st_dev, info.st_ino) not in seen and depth < _DEEPEST:
                seen.add((info.st_dev, info.st_ino))
                below.append((item.path, f"{prefix}{name}/"))
            continue
        if not name.endswith(_ENDINGS) or not stat.S_ISREG(info.st_mode) or info.st_size > _LARGEST:
            continue
        if budget[0] <= 0 or budget[1] < info.st_size or time.monotonic() > deadline:
            found.left_out = "more files than are looked at"
            return
        budget[0] -= 1
        budget[1] -= info.st_size
        digest = _digest(item.path)
        if digest:
            found.digests[prefix + name] = digest
    for path, inner in below:
        if found.left_out == "more files than are looked at":
            return
        _walk(path, inner, depth + 1, found, budget, deadline, seen)


def _digest(path: str) -> str:
    from ..keys.digest import digest_of

    try:
        # Not blocking: a named pipe in the place of a file would wait for a writer for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return ""
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size > _MOST_BYTES:
            return ""
        with os.fdopen(os.dup(fd), "rb") as file:
            return digest_of(file.read())[:16]
    except OSError:
        return ""
    finally:
        os.close(fd)
