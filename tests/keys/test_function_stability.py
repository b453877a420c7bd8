"""One function, one fingerprint: in every process, directory, hash seed, notebook; and for generated programs too."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotstart.keys.functions import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    Program = Callable[..., AbstractContextManager[Any]]

#: Everything whose order or address could leak: sets, enums, flags, classes in sets, instances, nested classes.
EVERYTHING = """
import abc, collections, dataclasses, enum, functools, logging, math, re, typing
import numpy as np
from helper import scale, CONFIG

class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"

class Bits(enum.Flag):
    A = 1
    B = 2

@dataclasses.dataclass
class Options:
    width: int = 3
    names: frozenset = frozenset({"x", "y", "z", "longer names", "q"})
    table: dict = dataclasses.field(default_factory=dict)

class Base(abc.ABC):
    __slots__ = ()
    registry = {int, str, bytes, float, dict}
    @abc.abstractmethod
    def run(self, x): ...

class Model(Base):
    __slots__ = ("a", "b", "c", "__dict__")
    def __init__(self):
        self.a, self.b, self.c, self.d, self.e = 1, {"k", "l", "m"}, [1], object(), Options()
    @property
    def p(self): return self.a
    @functools.cached_property
    def q(self): return self.b
    def run(self, x): return x + self.a + len(self.b)

log = logging.getLogger("everything")
WORDS = {"alpha", "beta", "gamma", "delta", "epsilon"}
MIXED = {Color.RED, int, Model, "a", 3, (1, 2), frozenset({"u", "v"}), len, math.sin}
PATTERN = re.compile("a|b", re.I)
ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)
model = Model()
order = collections.OrderedDict(b=1, a=2)

def f(x, *, mode: typing.Optional[Color] = Color.RED, bits=Bits.A | Bits.B):
    class Local:
        one, two = 1, 2
        def method(self):
            self.a = self.b = self.c = self.d = x
    log.debug("f")
    if x in {"one", "two", "three", "four"} or x in WORDS or x in MIXED:
        return [scale(y) for y in CONFIG if PATTERN.match(y)]
    return model.run(x) + model.q + order["a"] + ARRAY.sum(), Local, super

if __name__ == "__main__":
    import sys
    from hotstart.keys.functions import fingerprint
    print(fingerprint(f), fingerprint(model.run), fingerprint(Model), fingerprint(f.__kwdefaults__["mode"]))
"""
HELPER = """
CONFIG = {"a": {"nested": {"deep", "deeper", "deepest"}}, "b": (1, [2, {"three"}])}
def scale(x): return other(x) * 2
def other(x): return scale(x) if x else CONFIG
"""


def run(script: Path, seed: str, cwd: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *arguments, os.path.relpath(script, cwd)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_processes_agree_whatever_their_seed_directory_and_checkout(tmp_path: Path) -> None:
    outputs = set()
    for number, (place, seed, arguments) in enumerate(
        [("a", "0", ()), ("b/deeper/checkout", "1", ()), ("c d", "4242", ("-B",)), ("a", "7", ("-X", "importtime"))]
    ):
        directory = tmp_path / place
        directory.mkdir(parents=True, exist_ok=True)
        # Other lines, same program.
        (directory / "main.py").write_text("\n" * number * 40 + EVERYTHING)
        (directory / "helper.py").write_text("# moved\n" * number + HELPER)
        outputs.add(run(directory / "main.py", seed, tmp_path if number % 2 else directory, *arguments))
    assert len(outputs) == 1
    assert len(set(outputs.pop().split())) == 4


def test_a_script_and_its_worker_agree(tmp_path: Path) -> None:
    """multiprocessing imports the main script under another name."""
    (tmp_path / "main.py").write_text(
        textwrap.dedent("""
        import multiprocessing
        from hotstart.keys.functions import fingerprint
        class C:
            def m(self): return 1
        def helper(x): return C().m()
        def f(x=0): return helper(x)
        def child(queue): queue.put((__name__, fingerprint(f)))
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            worker = context.Process(target=child, args=(queue,))
            worker.start()
            name, theirs = queue.get(timeout=60)
            worker.join()
            print(name, theirs == fingerprint(f))
        """)
    )
    assert run(tmp_path / "main.py", "random", tmp_path) == "__mp_main__ True\n"


def test_the_name_of_the_module_counts_when_it_is_read(tmp_path: Path) -> None:
    seen = set()
    for name in ("one", "two"):
        namespace: dict[str, Any] = {"__name__": name}
        exec("def g(): pass\ndef f(): return g.__module__\ndef h(): return __name__\ndef i(): return 1", namespace)
        seen.add((name, *(fingerprint(namespace[function]) for function in "fhi")))
    first, second = sorted(seen)
    assert [a == b for a, b in zip(first, second, strict=True)] == [False, False, False, True]


def cell(number: int, text: str, namespace: dict[str, Any]) -> None:
    """What IPython does with a cell."""
    name = f"<ipython-input-{number}-{abs(hash(text)):x}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), namespace)


def test_a_notebook_redefines_a_helper() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cell(1, "def g(x):\n    y: int = x\n    return y\n", namespace)
    cell(2, "def f(x):\n    return g(x)\n", namespace)
    seen = [fingerprint(namespace["f"])]
    cell(3, "def g(x):\n    y: int = x\n    return y\n", namespace)  # the same cell again
    assert fingerprint(namespace["f"]) == seen[0]
    cell(4, "def g(x):\n    y: float = x\n    return y\n", namespace)  # same bytecode, another text
    seen.append(fingerprint(namespace["f"]))
    cell(5, "def g(x):\n    return x + 1\n", namespace)
    seen.append(fingerprint(namespace["f"]))
    assert len(set(seen)) == 3


def test_a_file_edited_after_import_does_not_make_it_another_function(tmp_path: Path, program: Program) -> None:
    old, new = "def f(x):\n    return x + 1\n", "def f(x):\n    return x + 2\n"
    with program(tmp_path, old) as main:
        before = fingerprint(main.f)
        (tmp_path / "main.py").write_text("\n" * 20 + old)
        moved = fingerprint(main.f)
        (tmp_path / "main.py").write_text(new)
        edited = fingerprint(main.f)
        (tmp_path / "main.py").write_text(old)
        assert fingerprint(main.f) == before
    with program(tmp_path, new) as main:
        assert fingerprint(main.f) not in (before, moved, edited)


def test_a_syntax_error_in_the_file_is_no_obstacle(tmp_path: Path, program: Program) -> None:
    with program(tmp_path, "def f(x):\n    return x + 1\n") as main:
        (tmp_path / "main.py").write_text("def f(x:\n")
        assert len(fingerprint(main.f)) == 64
        (tmp_path / "main.py").unlink()
        assert len(fingerprint(main.f)) == 64


NAMES = ("a", "b", "c", "d")
LEAVES = st.one_of(
    st.sampled_from(["x", "K", "T['k']", "L[0]", "o.v", "y", "z", "h.K"]),
    st.integers(-3, 3).map(lambda n: f"({n})"),
    st.sampled_from(["1.5", "True", "-0.0"]),
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda e: f"sum([{e} for y in (1, 2)])"),
        inner.map(lambda e: f"(lambda z: {e})(x)"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]} if x > 1 else {t[1]})"),
        st.tuples(st.sampled_from(NAMES), inner).map(lambda t: f"{t[0]}({t[1]})"),
        inner.map(lambda e: f"o.m({e})"),
        inner.map(lambda e: f"h.g({e})"),
        inner.map(lambda e: f"p({e})"),
    ),
    max_leaves=4,
)


@st.composite
def programs(draw: st.DrawFn) -> dict[str, str]:
    """The parts of a program that calls from ``f`` downwards, each an expression."""
    parts = {name: draw(EXPRESSIONS) for name in (*NAMES, "f", "method", "helper", "bound")}
    for at, name in enumerate(NAMES):  # no endless recursion: each calls only those after it
        for called in NAMES[: at + 1]:
            parts[name] = parts[name].replace(f"{called}(", "abs(")
    for part in ("method", "helper", "bound"):
        for called in (*(f"{name}(" for name in NAMES), "o.m(", "h.g(", "p("):
            parts[part] = parts[part].replace(called, "abs(")
    constants = {"K": "1", "T": "2", "L": "3", "v": "4", "default": "5", "cell": "6", "hK": "7"}
    return parts | {name: draw(st.sampled_from([value, "0"])) for name, value in constants.items()}


TEMPLATE = """
import types, functools
K, T, L = {K}, {{'k': {T}}}, [{L}]
y = z = 1
h = types.ModuleType("h")
exec('''y = z = 1
K, T, L = {hK}, {{"k": 1}}, [1]
class O: v = 1
o = O()
import types
h = types.SimpleNamespace(K=1)
def g(x): return {helper}''', h.__dict__)
class O:
    v = {v}
    def m(self, x): return {method}
o = O()
def make(k):
    def p(x, e={default}): return {bound} + k + e
    return functools.partial(p)
p = make({cell})
def a(x): return {a}
def b(x): return {b}
def c(x): return {c}
def d(x): return {d}
def f(x): return {f}
"""


def load(parts: dict[str, str]) -> Any:
    namespace: dict[str, Any] = {"__name__": "generated"}
    exec(TEMPLATE.format(**parts), namespace)
    return namespace["f"]


def behaviour(function: Any) -> list[str]:
    return [repr(function(x)) for x in (0, 1, 2, -1.5)]


@settings(max_examples=300, deadline=None)
@given(programs(), st.data())
def test_programs_that_behave_differently_have_different_fingerprints(
    parts: dict[str, str], data: st.DataObject
) -> None:
    part = data.draw(st.sampled_from(sorted(parts)))
    other = dict(parts)
    other[part] = data.draw(programs())[part]
    one, two = load(parts), load(other)
    if behaviour(one) != behaviour(two):
        assert fingerprint(one) != fingerprint(two)
    if parts == other:
        assert fingerprint(one) == fingerprint(two)
    assert fingerprint(load(parts)) == fingerprint(one)


@pytest.mark.parametrize("attempt", range(5))
def test_threads_may_ask_at_the_same_time(tmp_path: Path, program: Program, attempt: int) -> None:
    import concurrent.futures

    from hotstart.keys.functions import distributions

    distributions._search_path = []  # everything is to be found out again, by all at once
    text = "\n".join(f"def f{n}(x): return f{n + 1}(x) + {n}" for n in range(50)) + "\ndef f50(x): return x"
    with program(tmp_path, text) as main, concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: fingerprint(main.f0), range(64)))) == 1
