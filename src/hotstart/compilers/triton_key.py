"""Triton's hash of itself, remembered between processes.

Before its first compile, even one that it finds in a cache, Triton reads and hashes
its own sources and its library of hundreds of megabytes: ``triton_key()``, a few
tenths of a second in every process that needs no compiler otherwise. No cache
manager has been asked anything by then, so only those who install one by hand
(``CacheManager.over``) can be spared that, not those who name one in the environment.

What Triton computed is kept with the identities (inode, size, times) of all files it
could have read, and given back while those are the same. Triton does alike in its
own worker processes, which are handed their parent's.
"""

from __future__ import annotations

import os
import sys

from ..keys import memo
from ..keys.digest import digest_of, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAME = "triton_key"

#: Where Triton's releases define it, and where it and torch have a name of their own for it.
_HOMES = ("triton.runtime.cache", "triton.compiler.compiler")
_USERS = (*_HOMES, "triton.runtime.autotuner", "torch._inductor.runtime.triton_compat")

#: What Python can import, and so what Triton hashes.
_SUFFIXES = (".py", ".so", ".pyd", ".dylib", ".pyc")

#: The one directory whose files count although it is no package: the library lies there.
_LIBRARY = "_C"

#: Triton's own tree has five levels. A link back into itself ends here.
_DEPTH = 10


def remember(directory: str | None = None) -> bool:
    """Let Triton look for its hash in a memo before it computes it; whether that could be arranged.

    False where it has been computed already or this Triton computes it some other way.
    ``directory`` is where memos are, under hotstart's home unless given.
    """
    import triton

    root = os.path.dirname(os.path.abspath(triton.__file__))
    real = next((found for home in _HOMES if (found := getattr(sys.modules.get(home), _NAME, None)) is not None), None)
    computed = getattr(real, "cache_info", None)
    if real is None or computed is None or computed().currsize or getattr(real, "remembered", False):
        return False
    ours = _remembered(real, root, directory or memo.default_directory())
    for user in _USERS:
        if getattr(sys.modules.get(user), _NAME, None) is real:
            setattr(sys.modules[user], _NAME, ours)
    return True


def _remembered(real: Callable[[], str], root: str, directory: str) -> Callable[[], str]:
    from functools import lru_cache

    @lru_cache
    def triton_key() -> str:
        path = os.path.join(directory, f"triton-{digest_of(os.fsencode(root))[:32]}")
        before = _files(root)
        if before is None:
            return real()
        stamp = digest_of(encode(before)).encode()
        payload = memo.read(path)
        if payload is not None and payload.startswith(stamp):
            return payload[len(stamp) :].decode()
        found = real()
        if all(memo.settled(identity) for _, identity in before) and _files(root) == before:
            memo.write(path, stamp + found.encode())
        return found

    triton_key.remembered = True  # type: ignore[attr-defined]  # so that nobody remembers it twice
    return triton_key


def _files(root: str) -> list[tuple[str, memo.Identity]] | None:
    """All files that Triton could have hashed, by their place in it, and what tells each from a changed one."""
    try:
        return sorted(_walk(root, "", _DEPTH))
    except OSError:
        return None  # something is being installed just now


def _walk(root: str, inside: str, depth: int) -> Iterator[tuple[str, memo.Identity]]:
    with os.scandir(os.path.join(root, inside)) as found:
        entries = list(found)
    if inside != _LIBRARY and not any(entry.name.startswith("__init__.") for entry in entries):
        return  # Triton looks into packages alone; beside them lie thousands of headers
    for entry in entries:
        path = f"{inside}/{entry.name}" if inside else entry.name
        if entry.name.endswith(_SUFFIXES):
            yield path, memo.identity(entry.stat())
        elif depth and entry.is_dir() and entry.name != "__pycache__":
            yield from _walk(root, path, depth - 1)
