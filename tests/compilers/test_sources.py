"""SourceCache: the file is the source, whoever else was at it; and it stays while somebody uses it."""

from __future__ import annotations

import importlib.util
import inspect
import os
import stat
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotstart import SizeError, StoreError, UnsafeStoreError, UsageError, log
from hotstart.compilers.sources import SourceCache

Fork = Callable[..., Any]

SOURCE = '''"""Generated."""

def kernel(x):
    y = x + 1
    return y


def broken(x):
    raise ValueError("here")
'''


@pytest.fixture(autouse=True)
def _said_nothing_yet() -> None:
    log._said.clear()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sources"


def sources_in(root: Path) -> list[Path]:
    return [path for path in root.glob("??/*") if path.name != "__pycache__"]


def import_file(path: str) -> ModuleType:
    """As somebody would who only has the path."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- a file to import and to debug ----------------------------------------------------------


def test_the_file_holds_the_source_and_nothing_else(root: Path) -> None:
    cache = SourceCache(root)
    for text in (SOURCE, "", "x = 'ünï ☃'\r\n", "\ufeffx = 1\n", "no newline"):
        path = cache.path_for(text, "kernel")
        assert Path(path).read_bytes() == text.encode()
        assert cache.path_for(text, "kernel") == path == SourceCache(root).path_for(text, "kernel")
    assert cache.stats() == {"hit": 5, "written": 5, "replaced": 0, "evicted": 0, "diverted": 0}


@pytest.mark.parametrize("how", ["by path", "load"])
def test_it_imports_and_every_tool_finds_its_text(root: Path, how: str) -> None:
    cache = SourceCache(root)
    path = cache.path_for(SOURCE, "kernel")
    module = import_file(path) if how == "by path" else cache.load(SOURCE, "kernel")
    assert module.__file__ == path and module.kernel(1) == 2
    assert inspect.getsource(module.kernel) == "def kernel(x):\n    y = x + 1\n    return y\n"
    assert inspect.getsource(module) == SOURCE and inspect.getsourcefile(module.kernel) == path
    with pytest.raises(ValueError, match="here") as caught:
        module.broken(1)
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.lineno, frame.line) == (path, 9, 'raise ValueError("here")')


def test_a_module_is_made_once_and_is_an_ordinary_one(root: Path) -> None:
    cache = SourceCache(root)
    module = cache.load("import threading\nmade = []\n", "once")
    assert cache.load("import threading\nmade = []\n", "once") is module
    assert sys.modules[module.__name__] is module and module.__name__.isidentifier()
    assert importlib.import_module(module.__name__) is module
    again = cache.load("import threading\nmade = []\n", "twice")
    assert again is not module


def test_threads_that_load_at_once_get_one_module(root: Path) -> None:
    text = "import time\ntime.sleep(0.05)\nvalue = object()\n"
    found: list[ModuleType] = []
    threads = [threading.Thread(target=lambda: found.append(SourceCache(root).load(text, "slow"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 6 and len({id(module.value) for module in found}) == 1


def test_a_source_that_raises_leaves_nothing_behind(root: Path) -> None:
    cache = SourceCache(root)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.load("value = 1\n1 / 0\n", "failing")
        with pytest.raises(SyntaxError) as caught:
            cache.load("def\n", "failing")
        assert caught.value.filename == cache.path_for("def\n", "failing")
    assert not [name for name in sys.modules if name.startswith("failing_")]


def test_the_text_is_found_even_when_the_file_is_gone(root: Path) -> None:
    module = SourceCache(root).load(SOURCE + "# gone\n", "kernel")
    assert module.__file__ is not None
    Path(module.__file__).unlink()
    assert "y = x + 1" in inspect.getsource(module.kernel)


TRITON = """import triton
import triton.language as tl

@triton.jit
def NAME(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)
"""


def test_triton_compiles_what_was_loaded(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton", reason="needs triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    cache = SourceCache(root)
    for name in ("scale", "double"):
        kernel = getattr(cache.load(TRITON.replace("NAME", name), name), name)
        source = ASTSource(fn=kernel, signature={"x": "*fp32", "n": "i32", "B": "constexpr"}, constexprs={"B": 128})
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        assert f".entry {name}" in compiled.asm["ptx"] and compiled.asm["cubin"][:4] == b"\x7fELF"


# -- names ----------------------------------------------------------------------------------


def test_two_kernels_with_the_same_text_and_different_symbols_never_meet(root: Path) -> None:
    cache = SourceCache(root)
    paths = [
        cache.path_for(SOURCE, "add"),
        cache.path_for(SOURCE, "Add"),
        cache.path_for(SOURCE, "add_"),
        cache.path_for(SOURCE, "add", suffix=".cu"),
        cache.path_for(SOURCE + "\n", "add"),
    ]
    assert len(set(paths)) == 5
    assert len({Path(path).name.lower() for path in paths}) == 5, "one file on a disk that ignores case"
    assert cache.load(SOURCE, "add") is not cache.load(SOURCE, "add_")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(st.characters(), min_size=1, max_size=200)
    | st.sampled_from(["../../etc/passwd", "/abs", "a\0b", "..", ".", "con", "k<float, 4>", "1st", "class", "\udc80"])
)
def test_whatever_the_name_the_file_stays_in_its_directory(root: Path, name: str) -> None:
    path = Path(SourceCache(root).path_for("x = 1\n", name))
    assert path.parent.parent == root and path.read_text() == "x = 1\n"
    assert path.stem.isidentifier() and path.name.isascii() and len(path.name) < 128


@pytest.mark.parametrize(
    ("source", "name", "suffix"),
    [
        (b"x", "k", ".py"),
        ("x", "", ".py"),
        ("x", None, ".py"),
        ("x = '\udc80'", "k", ".py"),
        ("# -*- coding: latin-1 -*-\nx = 'ü'\n", "k", ".py"),
        ("# -*- coding: nonsense -*-\nx = 'ü'\n", "k", ".py"),
        ("x", "k", "py"),
        ("x", "k", ""),
        ("x", "k", "."),
        ("x", "k", "./x"),
        ("x", "k", "." + "x" * 40),
    ],
)
def test_what_no_file_can_hold_is_refused(root: Path, source: Any, name: Any, suffix: str) -> None:
    with pytest.raises(UsageError):
        SourceCache(root).path_for(source, name, suffix=suffix)
    assert sources_in(root) == []


def test_a_declared_encoding_that_changes_nothing_is_fine(root: Path) -> None:
    cache = SourceCache(root)
    assert cache.load("# -*- coding: utf-8 -*-\nx = 'ü'\n", "k").x == "ü"
    assert cache.load("# -*- coding: latin-1 -*-\nx = 'u'\n", "k").x == "u"
    Path(cache.path_for("// coding: latin-1 ü", "k", suffix=".cu")).read_text()


# -- whose it is ----------------------------------------------------------------------------


def test_everything_is_private(root: Path) -> None:
    SourceCache(root).path_for(SOURCE, "kernel")
    for path in [root, *root.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_directory_others_can_write_is_refused_or_given_a_child_of_our_own(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    path = SourceCache(shared).path_for(SOURCE, "kernel")
    child = shared / f"hotstart-{os.geteuid()}"
    assert path.startswith(f"{child}/") and stat.S_IMODE(child.stat().st_mode) == 0o700
    child.chmod(0o777)
    with pytest.raises(UnsafeStoreError):
        SourceCache(shared)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError):
        SourceCache(tmp_path / "file")
    with pytest.raises(SizeError):
        SourceCache(tmp_path / "s", max_size="1 GB")


def _flip(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"x + 1", b"x + 2"))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"import os\n")


def _link(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(other)


def _hard_link(path: Path) -> None:
    os.link(path, path.with_name("other"))


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nonexistent/file")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _writable(path: Path) -> None:
    path.chmod(0o666)


def _unreadable(path: Path) -> None:
    path.chmod(0)
    if os.geteuid() == 0:
        path.unlink()  # root reads everything


def _somebody_elses(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a file to another user")
    os.chown(path, 12345, 12345)


DAMAGE = [
    *(_flip, _truncate, _empty, _append, _link, _hard_link, _dangling, _pipe, _writable, _unreadable),
    _somebody_elses,
]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("fresh", [False, True], ids=["leased already", "new here"])
def test_what_is_not_the_source_is_replaced_and_never_imported(
    root: Path, damage: Callable[[Path], None], fresh: bool, fork: Fork
) -> None:
    cache = SourceCache(root)

    def write() -> str:
        return SourceCache(root).path_for(SOURCE, "kernel")

    path = Path(fork(write).result() if fresh else write())
    damage(path)
    assert cache.load(SOURCE, "kernel").kernel(1) == 2
    assert cache.path_for(SOURCE, "kernel") == str(path)
    assert path.read_bytes() == SOURCE.encode() and not path.is_symlink()
    info = path.stat()
    assert (stat.S_IMODE(info.st_mode), info.st_uid, info.st_nlink) == (0o600, os.geteuid(), 1)
    assert import_file(str(path)).kernel(1) == 2
    assert list((root / "tmp").iterdir()) == []


def test_a_directory_in_the_way_is_gone_around(root: Path) -> None:
    cache = SourceCache(root)
    path = Path(cache.path_for(SOURCE, "kernel"))
    path.unlink()
    path.mkdir()
    other = cache.path_for(SOURCE, "kernel")
    assert Path(other).read_text() == SOURCE and not other.startswith(str(root))
    assert path.is_dir() and cache.stats()["diverted"] == 1


@pytest.mark.parametrize("prefix", [False, True], ids=["", "PYTHONPYCACHEPREFIX"])
def test_no_bytecode_of_what_was_there_before_is_run(root: Path, tmp_path: Path, prefix: bool) -> None:
    """Bytecode is trusted for the size and the second of its source: a file put right within that second fools it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import importlib.util, os, sys\n"
        "from pathlib import Path\n"
        "from hotstart.compilers.sources import SourceCache\n"
        "def run(path):\n"
        "    spec = importlib.util.spec_from_file_location('m', path)\n"
        "    module = importlib.util.module_from_spec(spec)\n"
        "    spec.loader.exec_module(module)\n"
        "    return module.x\n"
        "cache = SourceCache(sys.argv[1])\n"
        "path = cache.path_for('x = 1\\n', 'k')\n"
        "Path(path).write_text('x = 2\\n')\n"
        "assert run(path) == 2\n"
        "assert cache.path_for('x = 1\\n', 'k') == path\n"
        "assert run(path) == 1, 'the bytecode of another source'\n"
        "for _ in range(3):\n"
        "    before = os.stat(path).st_mtime\n"
        "    assert cache.path_for('x = 1\\n', 'k') == path and os.stat(path).st_mtime == before\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    if prefix:
        environment["PYTHONPYCACHEPREFIX"] = str(tmp_path / "pyc")
    done = subprocess.run([sys.executable, script, root], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(root.rglob("*.pyc")) == []


def test_a_pipe_in_place_of_an_empty_source_is_replaced(root: Path) -> None:
    cache = SourceCache(root)
    path = Path(cache.path_for("", "empty"))
    _pipe(path)
    assert cache.path_for("", "empty") == str(path) and path.is_file()
