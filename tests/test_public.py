"""The public face: the names people import, and that nothing else leaks out."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hotstart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(hotstart.__file__).parent

NAMES = {
    "__version__", "open", "Cache", "Compiled", "Entry", "ContentStore",
    "Key", "CacheKey", "InputSpec", "DeviceClass",
    "fingerprint", "hash_value", "tensor_signature", "project_fingerprint", "memoize_handle", "compilers",
    "init", "torch",
    "HotstartError", "UsageError", "SizeError", "AddressError", "ArtifactNameError",
    "UncacheableError", "CompileError", "StoreError", "UnsafeStoreError",
}  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert set(hotstart.__all__) == set(dir(hotstart)) == NAMES
    for name in NAMES:
        assert getattr(hotstart, name) is not None


def test_other_names_are_missing_in_the_usual_way() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hotstart.nonsense  # noqa: B018  # the access is the test


def test_every_error_is_in_the_one_tree() -> None:
    errors = [getattr(hotstart, name) for name in NAMES if name.endswith("Error")]
    assert all(issubclass(error, hotstart.HotstartError) for error in errors)
    assert issubclass(hotstart.UsageError, ValueError)
    assert issubclass(hotstart.StoreError, OSError)


#: Lowest first. A part may import those before it and its own, wherever in a file the import stands.
LAYERS = (
    ("errors", "lifetime", "log"),
    ("keys",),
    ("store",),
    ("trust",),
    ("remote",),
    ("cache", "config", "drafting", "opening"),
    ("compilers",),
    ("launch", "torch"),
    ("insight",),
    ("cli",),
)


def imports_of(path: Path) -> set[str]:
    """The parts of hotstart that a file imports, also inside functions, but not for the type checker alone."""
    package = ("hotstart", *path.relative_to(SOURCE).parts[:-1])
    found: set[str] = set()
    for node in _run_time(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            whole = (*base, *(node.module.split(".") if node.module else ()))
            names = [whole] if len(whole) > 1 else [(*whole, each.name) for each in node.names]
        elif isinstance(node, ast.Import):
            names = [tuple(each.name.split(".")) for each in node.names]
        else:
            continue
        found |= {name[1] for name in names if name[0] == "hotstart" and len(name) > 1}
    return found


def _run_time(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from _run_time(child)


def test_imports_run_downwards() -> None:
    level = {part: number for number, parts in enumerate(LAYERS) for part in parts}
    upwards = []
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if own in level:
            above = [part for part in imports_of(path) if level.get(part, -1) > level[own]]
            upwards += [f"{path.relative_to(SOURCE)} imports {part}" for part in above]
    assert not upwards


def test_the_check_of_imports_sees_what_is_there() -> None:
    assert {"store", "keys"} <= imports_of(SOURCE / "cache.py")
    assert "config" in imports_of(SOURCE / "opening.py"), "one that stands inside a function"


def test_make_test_runs_every_directory_of_tests() -> None:
    """They are named in the Makefile, in two halves: one that is forgotten there would never run."""
    here = Path(__file__).parent
    makefile = here.parent / "Makefile"
    halves = [
        line.split("=")[1].split() for line in makefile.read_text().splitlines() if line[:6] in ("FIRST ", "SECOND")
    ]
    assert len(halves) == 2
    directories = {f"tests/{path.name}" for path in here.iterdir() if any(path.glob("**/test_*.py"))}
    assert directories == {name for half in halves for name in half} - {"tests/test_*.py"}
