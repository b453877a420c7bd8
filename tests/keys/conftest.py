"""What the tests of keys share: programs that are written to a directory, imported and forgotten again."""

from __future__ import annotations

import importlib
import sys
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from hotstart.keys import headers
from hotstart.keys.functions import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with a working directory and include directories; a process that has seen none of it."""
    for directory in ("work", "i1", "i2"):
        (tmp_path / directory).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    headers.forget()
    return tmp_path


@pytest.fixture
def program() -> Callable[..., AbstractContextManager[Any]]:
    """``program(directory, files)``: a context in which the program is loaded; gives its module ``main``."""
    return _program


@pytest.fixture
def fingerprint_in() -> Callable[..., str]:
    """``fingerprint_in(directory, files, name="f")``: the fingerprint of ``name`` in the program's ``main``."""
    return _fingerprint_in


@contextmanager
def _program(directory: Path, files: dict[str, str] | str) -> Iterator[Any]:
    """The module ``main`` of a program; a single text is that module. Names start fresh each time."""
    if isinstance(files, str):
        files = {"main.py": files}
    modules = set()
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        modules.add(name.partition("/")[0].removesuffix(".py"))
    before = dict(sys.modules)
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    try:
        yield importlib.import_module("main")
    finally:
        sys.path.remove(str(directory))
        for name in list(sys.modules):
            if name not in before and name.partition(".")[0] in modules:
                del sys.modules[name]


def _fingerprint_in(directory: Path, files: dict[str, str] | str, name: str = "f") -> str:
    with _program(directory, files) as main:
        found: Any = main
        for part in name.split("."):
            found = getattr(found, part)
        return fingerprint(found)
