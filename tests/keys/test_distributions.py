"""Installed code counts through its distribution; the user's own, and what was put in its place, by content."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib
import math
import os
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hotstart.errors import UncacheableError
from hotstart.keys.functions import distributions, fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    Program = Callable[..., AbstractContextManager[Any]]
    Install = Callable[..., None]

LIBRARY = """import threading
LOCK = threading.Lock()
K = {}
def scale(x):
  with LOCK: return x * {}
class Box:
  def get(self): return {}
"""
USER = "import lib\ndef f(x): return lib.scale(x)\ndef box(x): return lib.Box().get()\ndef k(x): return lib.K\n"


def promise(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(content)}"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """A site-packages directory of its own; what is imported from it is forgotten afterwards."""
    path = tmp_path / "site-packages"
    path.mkdir()
    sys.path.insert(0, str(path))
    yield path
    sys.path.remove(str(path))
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("lib", "other")]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def install(site: Path) -> Install:
    """``install(text, version=…)``: the distribution ``my-lib`` with its module ``lib``, as an installer leaves it."""

    def install(text: str, version: str = "1.0", extra: str = "", name: str = "lib.py") -> None:
        forget()
        for old in site.glob("my_lib-*"):
            (old / "RECORD").unlink()
            old.rmdir()
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(text)
        info = site / f"my_lib-{version}.dist-info"
        info.mkdir()
        (info / "RECORD").write_text(f"{name},{promise(text.encode())}\n{extra}my_lib-{version}.dist-info/RECORD,,\n")

    return install


def fingerprints(program: Program, directory: Path) -> dict[str, str]:
    with program(directory, USER) as main:
        return {name: fingerprint(getattr(main, name)) for name in ("f", "box", "k")}


def test_a_distribution_counts_through_name_version_and_what_was_installed(
    tmp_path: Path, install: Install, program: Program
) -> None:
    seen = []
    for text, version in [(1, "1.0"), (1, "1.1"), (2, "1.1")]:
        install(LIBRARY.format(text, text, text), version)
        seen.append(fingerprints(program, tmp_path / "user"))
        assert "my_lib" in (distributions.module_owner(sys.modules.get("lib") or importlib.import_module("lib")) or "")
    assert len({found["f"] for found in seen}) == 3
    assert len({found["box"] for found in seen}) == 3


def test_how_a_distribution_was_installed_does_not_count(tmp_path: Path, install: Install, program: Program) -> None:
    text = LIBRARY.format(1, 1, 1)
    install(text)
    before = fingerprints(program, tmp_path / "user")
    install(
        text,
        extra="../../../bin/lib,sha256=abc,200\n__pycache__/lib.cpython-311.pyc,,\n"
        "my_lib-1.0.dist-info/direct_url.json,sha256=abc,50\nmy_lib-1.0.dist-info/INSTALLER,sha256=abc,3\n",
    )
    assert fingerprints(program, tmp_path / "user") == before
    install(text, extra="lib_data.bin,sha256=abc,200\n")
    assert fingerprints(program, tmp_path / "user")["f"] != before["f"]


def test_a_distribution_installed_while_the_process_runs_is_noticed(
    tmp_path: Path, install: Install, program: Program
) -> None:
    text = LIBRARY.format(1, 1, 1)
    install(text, "1.0")
    with program(tmp_path / "user", USER) as main:
        before = fingerprint(main.f)
        install(text, "2.0")
        main.lib = importlib.import_module("lib")
        assert fingerprint(main.f) != before


@pytest.mark.parametrize("kind", ["loose", "edited", "no hash", "no RECORD", "editable"])
def test_what_no_record_vouches_for_is_the_users_own_code(
    tmp_path: Path, site: Path, install: Install, program: Program, kind: str
) -> None:
    def text(k: int) -> str:
        return f"def scale(x): return x * {k}\nclass Box:\n  def get(self): return {k}\nK = {k}\n"

    seen = []
    for k in (1, 2):
        if kind == "editable":
            (tmp_path / "src").mkdir(exist_ok=True)
            (tmp_path / "src" / "lib.py").write_text(text(k))
            sys.path.append(str(tmp_path / "src"))
            info = site / "my_lib-1.0.dist-info"
            info.mkdir(exist_ok=True)
            (info / "RECORD").write_text("_editable_my_lib.pth,sha256=abc,10\n")
        else:
            install(text(1))
            record = next(site.glob("my_lib-*")) / "RECORD"
            (site / "lib.py").write_text(text(k))
            if kind == "loose":
                record.write_text("")
            elif kind == "no hash":
                record.write_text("lib.py,,\n")
            elif kind == "no RECORD":
                record.unlink()
                record.touch()
            elif k == 1:
                (site / "lib.py").write_text(text(0))
        forget()
        try:
            seen.append(fingerprints(program, tmp_path / "user"))
        finally:
            if kind == "editable":
                sys.path.remove(str(tmp_path / "src"))
            forget()
    assert all(seen[0][name] != seen[1][name] for name in seen[0])


@pytest.fixture
def loaded(tmp_path: Path, install: Install, program: Program) -> Iterator[Any]:
    install(LIBRARY.format(1, 1, 1))
    with program(tmp_path / "user", USER) as main:
        yield main


def test_a_function_put_in_the_place_of_a_librarys_counts_by_content(loaded: Any) -> None:
    seen = [fingerprint(loaded.f)]
    for k in (1, 2):
        exec(f"def scale(x): return x + {k}", loaded.__dict__)
        loaded.lib.scale = loaded.scale
        seen.append(fingerprint(loaded.f))
    assert len(set(seen)) == 3


def test_a_function_that_claims_to_be_the_librarys_counts_by_content(loaded: Any) -> None:
    seen = [fingerprint(loaded.f)]
    for k in (1, 2):
        exec(f"def scale(x): return x + {k}", loaded.__dict__)
        loaded.scale.__module__ = "lib"
        loaded.lib.scale = loaded.scale
        seen.append(fingerprint(loaded.f))
    assert len(set(seen)) == 3


def test_code_exchanged_inside_a_librarys_function_counts_by_content(loaded: Any) -> None:
    seen = [fingerprint(loaded.f)]
    for k in (1, 2):
        exec(f"def scale(x): return x + {k}", loaded.__dict__)
        loaded.lib.scale.__code__ = loaded.scale.__code__
        seen.append(fingerprint(loaded.f))
    assert len(set(seen)) == 3


@pytest.mark.parametrize("wrap", [lambda g: g, staticmethod, classmethod, property])
def test_a_method_put_into_a_librarys_class_counts_by_content(loaded: Any, wrap: Callable[[Any], Any]) -> None:
    seen = [fingerprint(loaded.box)]
    for k in (1, 2):
        exec(f"def get(*x): return {k}", loaded.__dict__)
        loaded.lib.Box.get = wrap(loaded.get)
        seen.append(fingerprint(loaded.box))
    assert len(set(seen)) == 3


def test_a_method_put_into_the_base_of_a_librarys_class_counts(loaded: Any) -> None:
    exec("class Sub(Box): pass", loaded.lib.__dict__)
    exec("def box(x): return lib.Sub().get()", loaded.__dict__)
    before = fingerprint(loaded.box)
    exec("def get(self): return 5", loaded.__dict__)
    loaded.lib.Box.get = loaded.get
    assert fingerprint(loaded.box) != before


def test_library_functions_in_each_others_place_count(loaded: Any) -> None:
    exec("class Other:\n  def get(self): return 9\n  def put(self): return 8\n", loaded.lib.__dict__)
    seen = [fingerprint(loaded.box)]
    for method in (loaded.lib.Other.get, loaded.lib.Other.put):
        loaded.lib.Box.get = method
        seen.append(fingerprint(loaded.box))
    assert len(set(seen)) == 3


@pytest.mark.parametrize("owner", ["module", "class"])
def test_a_librarys_wrapper_around_its_own_function_counts(
    tmp_path: Path, install: Install, program: Program, owner: str
) -> None:
    install(
        LIBRARY.format(1, 1, 1)
        + "import functools\ndef twice(g):\n  @functools.wraps(g)\n  def w(x): return g(g(x))\n  return w\n"
        "def once(g):\n  @functools.wraps(g)\n  def v(x): return g(x)\n  return v\n"
    )
    with program(tmp_path / "user", USER) as main:
        place, name, function = (main.lib, "scale", main.f) if owner == "module" else (main.lib.Box, "get", main.box)
        original = getattr(place, name)
        seen = [fingerprint(function)]
        for wrapped in (
            main.lib.twice(original),
            main.lib.once(original),
            main.lib.once(main.lib.twice(original)),
            functools.lru_cache(original),
        ):
            setattr(place, name, wrapped)
            seen.append(fingerprint(function))
    assert len(set(seen)) == (5 if owner == "module" else 4)


def test_a_switch_of_a_library_counts_by_value(loaded: Any) -> None:
    before = fingerprint(loaded.k)
    loaded.lib.K = 2
    assert fingerprint(loaded.k) != before


def test_a_switch_behind_a_property_of_a_library_counts_by_value(
    tmp_path: Path, install: Install, program: Program
) -> None:
    install("STATE = [0]\nclass Switches:\n  @property\n  def fast(self): return STATE[0]\nswitches = Switches()\n")
    with program(tmp_path / "user", "import lib\ndef f(x): return lib.switches.fast") as main:
        before = fingerprint(main.f)
        main.lib.STATE[0] = 1
        assert fingerprint(main.f) != before


def test_a_closure_made_by_a_library_counts_with_what_it_holds(
    tmp_path: Path, install: Install, program: Program
) -> None:
    install(
        "import threading\nLOCK = threading.Lock()\ndef wrap(g):\n  def w(x):\n    with LOCK: return g(x)\n  return w\n"
    )
    seen = []
    for k in (1, 2):
        with program(tmp_path / f"user{k}", f"import lib\n@lib.wrap\ndef f(x): return x + {k}") as main:
            seen.append(fingerprint(main.f))  # its lock is the library's own affair
    assert seen[0] != seen[1]


def test_a_lazy_attribute_of_a_library_is_not_loaded(tmp_path: Path, install: Install, program: Program) -> None:
    install("def __getattr__(name): raise SystemExit(name)\n")
    with program(tmp_path / "user", "import lib\ndef f(x): return lib.heavy.run(x)") as main:
        assert fingerprint(main.f) == fingerprint(main.f)


def test_a_module_of_a_namespace_shared_by_distributions_is_found(site: Path, install: Install) -> None:
    (site / "other-1.0.dist-info").mkdir()
    (site / "other-1.0.dist-info" / "RECORD").write_text(f"shared/b.py,{promise(b'')}\n")
    (site / "shared").mkdir()
    (site / "shared" / "b.py").write_text("")
    install("", name="shared/a.py")
    distributions.refresh()
    assert (distributions.owner(str(site / "shared" / "a.py")) or "").startswith("my_lib 1.0 ")
    assert (distributions.owner(str(site / "shared" / "b.py")) or "").startswith("other 1.0 ")
    assert distributions.owner(str(site / "shared" / "c.py")) is None


def test_the_interpreter_owns_its_modules() -> None:
    for name in ("os", "math", "json", "_io", "builtins", "collections.abc", "zipimport"):
        assert distributions.module_owner(importlib.import_module(name)) == distributions.PYTHON, name
    assert distributions.module_owner(types.ModuleType("os")) is None
    assert distributions.module_owner(sys.modules[__name__]) is None


def test_a_monkeypatched_built_in_module_counts_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: float) -> float:
        return math.sin(x)

    seen = [fingerprint(f)]
    monkeypatch.setattr(math, "sin", lambda x: 1)
    seen.append(fingerprint(f))
    monkeypatch.setattr(math, "sin", lambda x: 2)
    seen.append(fingerprint(f))
    monkeypatch.setattr(math, "sin", math.cos)
    seen.append(fingerprint(f))
    assert len(set(seen)) == 4


def test_functions_of_numpy_count_through_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        return np.linalg.norm(np.add(np.dot(x, x), x.astype(np.float32)))

    before = fingerprint(f)
    assert fingerprint(f) == before
    monkeypatch.setattr(np, "add", np.subtract)
    assert fingerprint(f) != before
    monkeypatch.undo()
    monkeypatch.setattr(np.linalg, "norm", lambda x: x)
    assert fingerprint(f) != before


@pytest.mark.parametrize("name", ["lib.py", "RECORD"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_at(
    tmp_path: Path, site: Path, install: Install, program: Program, name: str
) -> None:
    install(LIBRARY.format(1, 1, 1))
    with program(tmp_path / "user", USER) as main:
        path = site / name if name == "lib.py" else next(site.glob("my_lib-*")) / name
        path.unlink()
        os.mkfifo(path)
        try:
            distributions._sites.clear()
            distributions._owners.clear()
            distributions.generation += 1
            # Nothing vouches for it any more: it is the user's own, lock and all.
            with pytest.raises(UncacheableError, match="LOCK"):
                fingerprint(main.f)
        finally:
            path.unlink()
            path.touch()


def test_the_standard_metadata_library_is_not_imported() -> None:
    import subprocess

    code = (
        "import sys; from hotstart.keys.functions import fingerprint; import blake3; "
        "f = lambda x: blake3.blake3(x); fingerprint(f); "
        "print([m for m in ('importlib.metadata', 'inspect', 'typing', 'dataclasses', 'logging', 'pathlib', 'json') "
        "if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-Sc", code], capture_output=True, text=True, check=False, env=environment())
    assert (run.stdout, run.stderr) == ("[]\n", "")


def environment() -> dict[str, str]:
    """For an interpreter without site: it finds what this one found."""
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_a_target_directory_inside_a_project_on_the_path_is_found(
    tmp_path: Path, install: Install, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pip install --target project/vendor`` with both on sys.path, the project first."""
    install(LIBRARY.format(1, 1, 1))
    vendor = tmp_path / "project" / "vendor"
    vendor.parent.mkdir()
    site.rename(vendor)
    monkeypatch.setattr(sys, "path", [str(vendor.parent), str(vendor), *sys.path])
    distributions.refresh()
    assert (distributions.owner(str(vendor / "lib.py")) or "").startswith("my_lib 1.0 ")
    assert distributions.owner(str(vendor.parent / "lib.py")) is None
    vendor.rename(site)
