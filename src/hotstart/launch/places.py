"""Small things done to files here and there in ``launch``: written whole, removed with what is empty above."""

from __future__ import annotations

import os

from ..store import files


def replace(path: str, data: bytes, *, executable: bool = False, modified: int | None = None, via: str = "") -> bool:
    """Give ``path`` this content, whole or not at all, its directory made if need be. False when that failed.

    ``via`` is where the temporary file lies, for directories in which a framework might take it for its own.
    """
    mode = 0o700 if executable else files.PRIVATE_FILE
    place, name = os.path.split(path)
    place = via or place
    temporary = f"{place}/.{name}.{files.unique_name()}"
    try:
        try:
            fd = files.open(temporary, files.CREATE, mode)
        except FileNotFoundError:
            files.makedirs(place)
            fd = files.open(temporary, files.CREATE, mode)
        try:
            files.write_all(fd, [data], len(data))
            if modified is not None:
                files.utime(fd, ns=(modified, modified))
        finally:
            files.close(fd)
        try:
            files.rename(temporary, path)
        except FileNotFoundError:
            files.makedirs(os.path.dirname(path))
            files.rename(temporary, path)
    except OSError:
        unlink(temporary)
        return False
    return True


def unlink(path: str) -> bool:
    """Whether it was there and is gone."""
    try:
        files.unlink(path)
    except OSError:
        return False
    return True


def prune(directory: str, root: str) -> None:
    """Remove ``directory`` and those above it that are empty, below ``root``."""
    while directory.startswith(root + "/"):
        try:
            os.rmdir(directory)
        except OSError:
            return  # not empty, or gone
        directory = os.path.dirname(directory)


def remove_tree(path: str) -> None:
    """All of it, as far as it goes; links are removed, not followed."""
    import shutil

    shutil.rmtree(path, ignore_errors=True)
