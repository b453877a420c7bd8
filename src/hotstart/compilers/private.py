"""A private temporary directory of this process, for files that have to be somewhere."""

from __future__ import annotations

import atexit
import os

from ..errors import StoreError
from ..store import files

#: By process id: a child must not take over, or remove, what is its parent's.
_directories: dict[int, str] = {}


class Private:
    """Files by name, each with the content it was asked for; gone when the process ends."""

    __slots__ = ()

    def path_for(self, name: str, data: bytes) -> str:
        """Raises StoreError when nothing can be written anywhere."""
        path = f"{_directory()}/{name}"
        try:
            with open(path, "rb") as file:
                if file.read() == data:
                    return path
        except OSError:
            pass  # not there yet, or not as it was left: written anew
        temporary = f"{path}.{files.unique_name()}"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.PRIVATE_FILE)
            with open(fd, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError as error:
            raise StoreError(f"{name} cannot be written, not even to a temporary directory: {error}") from error
        return path


def _directory() -> str:
    found = _directories.get(os.getpid())
    if found is None:
        import tempfile

        reasons = []
        for parent in (None, "/dev/shm"):
            try:
                found = _directories[os.getpid()] = tempfile.mkdtemp(prefix="hotstart-sources-", dir=parent)
                return found
            except OSError as error:
                reasons.append(str(error))
        raise StoreError(f"no temporary directory can be written: {'; '.join(reasons)}")
    return found


def _at_exit() -> None:
    found = _directories.pop(os.getpid(), None)
    if found is not None:
        import shutil

        shutil.rmtree(found, ignore_errors=True)


atexit.register(_at_exit)
