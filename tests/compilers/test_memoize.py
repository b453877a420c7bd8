"""memoize_handle: the same call makes one handle, however it is written; another call never gets it."""

from __future__ import annotations

import csv
import hashlib
import os
import subprocess
import sys
import threading
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest

from hotstart import Key, UsageError, log
from hotstart.compilers.handles import HandleCache
from hotstart.compilers.memoize import memoize_handle

ROOT = Path(__file__).parents[2]


class Launcher:
    def __init__(self, *of: object) -> None:
        self.of = of


BLOCK = {"bm": 64}


def test_however_the_arguments_are_passed_it_is_the_same_call() -> None:
    @memoize_handle
    def make(kernel: str, warps: int = 4, *, stages: int = 2) -> Launcher:
        return Launcher(kernel, warps, stages)

    first = make("add")
    assert make("add", 4) is first
    assert make(kernel="add", stages=2) is first
    assert make("add", warps=4, stages=2) is first
    for other in (make("add", 8), make("add", stages=3), make("mul"), make("add", True), make("add", 4.0)):  # type: ignore[arg-type]
        assert other is not first
    assert make.cache.stats()["built"] == 6  # type: ignore[attr-defined]


def test_variadic_arguments_count_too() -> None:
    @memoize_handle
    def make(*parts: object, **options: object) -> Launcher:
        return Launcher(parts, options)

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        *(((), {}), ((1,), {}), (((1,),), {}), ((1, 2), {}), ((), {"a": 1}), ((), {"b": 1}), (({"a": 1},), {})),
    ]
    made = [make(*args, **kwargs) for args, kwargs in calls]
    assert len(set(map(id, made))) == len(calls)
    assert make(a=1) is made[4]


def test_a_function_among_the_arguments_counts_with_all_it_reads() -> None:
    @memoize_handle
    def make(arrangement: Any) -> Launcher:
        return Launcher(arrangement)

    def arrangement(x: Any) -> Any:
        return helper(x)

    def helper(x: Any) -> Any:
        return x.tile(BLOCK["bm"])

    first = make(arrangement)
    assert make(arrangement) is first
    BLOCK["bm"] = 128
    try:
        assert make(arrangement) is not first
    finally:
        BLOCK["bm"] = 64
    assert make(arrangement) is first


def test_what_the_decorated_function_reads_counts() -> None:
    @memoize_handle
    def make(name: str) -> Launcher:
        return Launcher(name, BLOCK["bm"])

    first = make("add")
    BLOCK["bm"] = 32
    try:
        assert make("add").of == ("add", 32)
    finally:
        BLOCK["bm"] = 64
    assert make("add") is first


def test_tensors_count_by_what_a_compiler_sees() -> None:
    numpy = pytest.importorskip("numpy")

    @memoize_handle
    def make(x: Any, y: Any) -> Launcher:
        return Launcher(x, y)

    a = numpy.zeros((8, 8), "float32")
    first = make(a, a)
    assert make(numpy.ones((8, 8), "float32"), a) is first
    others = [a.T, a[:, :4], a.astype("float16"), numpy.zeros((8, 9), "float32")]
    assert len({id(make(other, a)) for other in others} | {id(first)}) == 5


def test_a_key_function_says_what_counts() -> None:
    cache = HandleCache()

    @memoize_handle(key=lambda kernel, stream=None: kernel, cache=cache)
    def make(kernel: Any, stream: object = None) -> Launcher:
        return Launcher(kernel)

    @memoize_handle(key=lambda kernel: kernel, cache=cache)
    def another(kernel: Any) -> Launcher:
        return Launcher(kernel)

    first = make("add", object())
    assert make("add", object()) is first
    assert another("add") is not first, "two functions that share a cache shared a handle"
    for one, other in [((1,), [1]), ((), None), (("a",), "a"), ((None, 1), 1), (Key("k", n=1), Key("k", n=2))]:
        assert make(one) is not make(other)
    assert make(Key("k", n=1)) is make(Key("k", n=1))


def test_a_call_without_a_key_is_made_every_time_and_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    log._said.clear()

    @memoize_handle
    def make(stream: object) -> Launcher:
        return Launcher(stream)

    lock = threading.Lock()
    assert make(lock) is not make(lock)
    assert make.cache.stats()["uncacheable"] == 2  # type: ignore[attr-defined]
    said = capfd.readouterr().err
    assert said.count("built anew at every call") == 1 and "make" in said


def test_wrong_arguments_raise_what_the_function_would() -> None:
    @memoize_handle
    def make(kernel: str, warps: int = 4) -> Launcher:
        return Launcher(kernel, warps)

    make("add")
    for args, kwargs in [((), {}), (("add", 4, 5), {}), (("add",), {"kernel": "add"}), (("add",), {"stages": 1})]:
        with pytest.raises(TypeError, match=r"make\(\)"):
            make(*args, **kwargs)  # type: ignore[arg-type]


def test_methods_count_with_what_they_are_bound_to() -> None:
    class Library:
        def __init__(self, arch: str) -> None:
            self.arch = arch

        def __hotstart_key__(self) -> str:
            return self.arch

        @memoize_handle
        def make(self, kernel: str) -> Launcher:
            """Make one."""
            return Launcher(self.arch, kernel)

    one, same, other = Library("sm_90"), Library("sm_90"), Library("sm_80")
    assert one.make("add") is same.make("add")
    assert other.make("add").of == ("sm_80", "add")
    assert one.make.__doc__ == "Make one."


def test_a_failed_build_is_tried_again() -> None:
    attempts = []

    @memoize_handle(key=lambda: "one")
    def make() -> Launcher:
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError("out of memory")
        return Launcher()

    with pytest.raises(RuntimeError):
        make()
    assert make() is make()


def test_what_can_be_used_only_once_is_refused() -> None:
    async def coroutine() -> None: ...

    def generator() -> Any:
        yield 1

    for function in (coroutine, generator):
        with pytest.raises(UsageError, match="only once"):
            memoize_handle(function)
    with pytest.raises(UsageError, match="decorates"):
        memoize_handle(3)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="shared"):
        memoize_handle(cache=HandleCache(), max_entries=4)


def test_a_cache_of_its_own_is_bounded_and_tells_what_leaves() -> None:
    gone: list[Launcher] = []

    @memoize_handle(max_entries=2, on_evict=gone.append)
    def make(n: int) -> Launcher:
        return Launcher(n)

    for n in range(5):
        make(n)
    assert [launcher.of for launcher in gone] == [(0,), (1,), (2,)]


def _install(site: Path) -> None:
    """A copy of this package as pip leaves it: files and a RECORD of them."""
    source = ROOT / "src" / "hotstart"
    rows = []
    for path in source.rglob("*.py"):
        name = Path("hotstart") / path.relative_to(source)
        data = path.read_bytes()
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
        digest = urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append((name.as_posix(), f"sha256={digest}", len(data)))
    info = site / "hotstart-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hotstart\nVersion: 9.9\n")
    with (info / "RECORD").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def test_a_function_that_calls_a_memoized_one_can_be_fingerprinted(tmp_path: Path) -> None:
    """Its handles are no part of what it does; the function behind it is. With hotstart installed, not editable."""
    site = tmp_path / "site-packages"
    _install(site)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from hotstart.compilers.memoize import memoize_handle\n"
        "from hotstart.keys.functions import fingerprint\n"
        "STEP = 1\n"
        "@memoize_handle\n"
        "def make(n):\n"
        "    return n + STEP\n"
        "def kernel():\n"
        "    return make(1)\n"
        "prints = [fingerprint(kernel)]\n"
        "make(1), make(2)\n"
        "prints.append(fingerprint(kernel))\n"
        "STEP = 2\n"
        "prints.append(fingerprint(kernel))\n"
        "assert prints[0] == prints[1] != prints[2], prints\n"
        "assert sys.modules['hotstart'].__file__.startswith(sys.path[1]), sys.path\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
