"""Generated source as a module: imported from text that was checked, debugged through its file."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


class _Loader:
    """Runs the bytes it was given. The file beside them is for people, ``inspect`` and debuggers.

    Reading the file again to import it would run whatever had come there since it was
    checked, and Python's own cache of bytecode trusts a time of one-second ticks.
    """

    __slots__ = ("_data", "path")

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._data, self.path, "exec", dont_inherit=True), module.__dict__)

    def get_source(self, fullname: str) -> str:
        """For ``linecache``, should the file be gone."""
        from importlib.util import decode_source

        return decode_source(self._data)

    def is_package(self, fullname: str) -> bool:
        return False


class _Finder:
    """On ``sys.meta_path``: an ordinary import, with the import system's own locks and clean-up."""

    def __init__(self) -> None:
        self.known: dict[str, _Loader] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader = self.known.get(fullname)
        if loader is None:
            return None
        spec = ModuleSpec(fullname, loader, origin=loader.path)  # type: ignore[arg-type]  # a loader by its methods
        spec.has_location = True
        return spec


_finder = _Finder()


def load(name: str, path: str, data: bytes) -> ModuleType:
    """The module ``name``, made of ``data`` once per process. Raises what the source raises."""
    from importlib import import_module

    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)
    _finder.known.setdefault(name, _Loader(path, data))
    return import_module(name)
