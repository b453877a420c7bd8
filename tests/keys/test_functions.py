"""Whatever changes what a function does changes its fingerprint; whatever does not, does not.

Each pair is one program in two versions, imported from real files. The first group
are the changes that function hashes elsewhere were seen to miss.
"""

from __future__ import annotations

import textwrap
from contextlib import AbstractContextManager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest

from hotstart.keys.functions import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Program = Callable[..., AbstractContextManager[Any]]
    Fingerprint = Callable[..., str]

Files = dict[str, str] | str

THREE_DEEP = """
    def third(x): return x * {}
    def second(x): return third(x)
    def first(x): return second(x)
    def f(x): return first(x)
"""
TABLE = """
    TABLE = {}
    def f(x): return TABLE["a"] + x
"""
USES_HELPER = """
    import helper
    def f(x): return helper.scale(x)
"""
PACKAGE = """
    import pkg.sub.leaf
    def f(x): return pkg.sub.leaf.g(x)
"""
TWO_AWAY = """
    from middle import g
    def f(x): return g(x)
"""
MIDDLE = """
    import far
    def g(x): return far.h(x)
"""

CHANGES: dict[str, tuple[Files, Files]] = {
    # Seen to be missed elsewhere (PEERS.md).
    "a helper three calls deep": (THREE_DEEP.format(2), THREE_DEEP.format(3)),
    "a dict global": (TABLE.format("{'a': 1}"), TABLE.format("{'a': 2}")),
    "module.helper": (
        {"main.py": USES_HELPER, "helper.py": "def scale(x): return x * 2"},
        {"main.py": USES_HELPER, "helper.py": "def scale(x): return x * 3"},
    ),
    "a helper in another file": (
        {"main.py": "from helper import scale\ndef f(x): return scale(x)", "helper.py": "def scale(x): return x * 2"},
        {"main.py": "from helper import scale\ndef f(x): return scale(x)", "helper.py": "def scale(x): return x - 2"},
    ),
    "a helper two modules away": (
        {"main.py": TWO_AWAY, "middle.py": MIDDLE, "far.py": "K = 1\ndef h(x): return x + K"},
        {"main.py": TWO_AWAY, "middle.py": MIDDLE, "far.py": "K = 2\ndef h(x): return x + K"},
    ),
    # The function itself.
    "a constant": ("def f(x): return x + 1", "def f(x): return x + 2"),
    "True for 1": ("def f(x): return x, 1", "def f(x): return x, True"),
    "1.0 for 1": ("def f(x): return x, 1", "def f(x): return x, 1.0"),
    "-0.0 for 0.0": ("def f(x): return x * 0.0", "def f(x): return x * -0.0"),
    "bytes for str": ("def f(x): return 'a'", "def f(x): return b'a'"),
    "an operator": ("def f(x): return x + 1", "def f(x): return x - 1"),
    "an attribute name": ("def f(x): return x.real", "def f(x): return x.imag"),
    "a member of a set constant": ("def f(x): return x in {1, 2, 3}", "def f(x): return x in {1, 2, 4}"),
    "the order of parameters": ("def f(a, b): return a - b", "def f(b, a): return a - b"),
    "a parameter made keyword-only": ("def f(a, b): return a", "def f(a, *, b): return a"),
    "a default": ("def f(x, y=1): return x + y", "def f(x, y=2): return x + y"),
    "a keyword default": ("def f(x, *, y=1): return x + y", "def f(x, *, y=2): return x + y"),
    "a generator for a list": ("def f(x): return [x]", "def f(x): yield x"),
    "what is caught": (
        "def f(x):\n  try: return 1 / x\n  except ZeroDivisionError: return 0",
        "def f(x):\n  try: return 1 / x\n  except ValueError: return 0",
    ),
    "what is inside the try": (
        "def f(x):\n  try:\n    y = 1 / x\n  except Exception: return 0\n  return g(y)\ndef g(y): return 1 / 0",
        "def f(x):\n  try:\n    y = 1 / x\n    return g(y)\n  except Exception: return 0\ndef g(y): return 1 / 0",
    ),
    "its name": ("def g(x): return x\nf = g", "def h(x): return x\nf = h"),
    "a constant in a lambda": ("f = lambda x: x + 1", "f = lambda x: x + 2"),
    "a nested function": (
        "def f(x):\n  def g(y): return y + 1\n  return g(x)",
        "def f(x):\n  def g(y): return y + 2\n  return g(x)",
    ),
    "a constant in a comprehension": ("def f(x): return [i + 1 for i in x]", "def f(x): return [i + 2 for i in x]"),
    "a constant in a nested class": (
        "def f(x):\n  class C:\n    k = 1\n  return C.k",
        "def f(x):\n  class C:\n    k = 2\n  return C.k",
    ),
    # What it reads.
    "a global constant": ("K = 1\ndef f(x): return x + K", "K = 2\ndef f(x): return x + K"),
    "a global's type": ("K = (1, 2)\ndef f(x): return K", "K = [1, 2]\ndef f(x): return K"),
    "an entry deep in a dict": (TABLE.format("{'a': {'b': [1]}}"), TABLE.format("{'a': {'b': [2]}}")),
    "the order of a dict": (TABLE.format("{'a': 1, 'b': 2}"), TABLE.format("{'b': 2, 'a': 1}")),
    "the type of a dict's key": (TABLE.format("{1: 1}"), TABLE.format("{'1': 1}")),
    "a list global": ("K = [1, 2]\ndef f(x): return K", "K = [2, 1]\ndef f(x): return K"),
    "a set global": ("K = {'a', 'b'}\ndef f(x): return x in K", "K = {'a', 'c'}\ndef f(x): return x in K"),
    "two names for one list": (
        "A = [0]\nB = A\ndef f(x): A[0] = x; return B",
        "A = [0]\nB = [0]\ndef f(x): A[0] = x; return B",
    ),
    "a global in a comprehension": (
        "K = 1\ndef f(x): return [i + K for i in x]",
        "K = 2\ndef f(x): return [i + K for i in x]",
    ),
    "a global in a nested lambda": (
        "K = 1\ndef f(x): return (lambda y: y + K)(x)",
        "K = 2\ndef f(x): return (lambda y: y + K)(x)",
    ),
    "a global in a nested class body": (
        "K = 1\ndef f(x):\n  class C:\n    k = K\n  return C.k",
        "K = 2\ndef f(x):\n  class C:\n    k = K\n  return C.k",
    ),
    "a global that is also written": (
        "N = 1\ndef f(x):\n  global N\n  N += 1\n  return N",
        "N = 2\ndef f(x):\n  global N\n  N += 1\n  return N",
    ),
    "a name that becomes bound": ("def f(x): return K", "K = 1\ndef f(x): return K"),
    "a shadowed builtin": ("def f(x): return sum(x)", "def sum(x): return 0\ndef f(x): return sum(x)"),
    "a chain of modules": (
        {"main.py": PACKAGE, "pkg/__init__.py": "", "pkg/sub/__init__.py": "", "pkg/sub/leaf.py": "def g(x): return x"},
        {
            "main.py": PACKAGE,
            "pkg/__init__.py": "",
            "pkg/sub/__init__.py": "",
            "pkg/sub/leaf.py": "def g(x): return -x",
        },
    ),
    "a constant of a module": (
        {"main.py": "import helper\ndef f(x): return x + helper.K", "helper.py": "K = 1"},
        {"main.py": "import helper\ndef f(x): return x + helper.K", "helper.py": "K = 2"},
    ),
    "a module under a computed name": (
        {"main.py": "import helper\ndef f(x, n): return getattr(helper, n)(x)", "helper.py": "def g(x): return x"},
        {"main.py": "import helper\ndef f(x, n): return getattr(helper, n)(x)", "helper.py": "def g(x): return -x"},
    ),
    "a module passed on": (
        {
            "main.py": "import helper\ndef use(m, x): return m.g(x)\ndef f(x): return use(helper, x)",
            "helper.py": "g = abs",
        },
        {
            "main.py": "import helper\ndef use(m, x): return m.g(x)\ndef f(x): return use(helper, x)",
            "helper.py": "g = int",
        },
    ),
    "a module's dictionary": (
        {"main.py": "import helper\ndef f(x): return helper.__dict__[x]", "helper.py": "K = 1"},
        {"main.py": "import helper\ndef f(x): return helper.__dict__[x]", "helper.py": "K = 2"},
    ),
    "a module's __getattr__": (
        {"main.py": "import helper\ndef f(x): return helper.k", "helper.py": "def __getattr__(name): return 1"},
        {"main.py": "import helper\ndef f(x): return helper.k", "helper.py": "def __getattr__(name): return 2"},
    ),
    "all globals": ("K = 1\ndef f(x): return globals()[x]", "K = 2\ndef f(x): return globals()[x]"),
    "an import inside": (
        {
            "main.py": "import helper\ndef f(x):\n  import helper\n  return helper.g(x)",
            "helper.py": "def g(x): return x",
        },
        {
            "main.py": "import helper\ndef f(x):\n  import helper\n  return helper.g(x)",
            "helper.py": "def g(x): return -x",
        },
    ),
    "a from-import inside": (
        {
            "main.py": "import helper\ndef f(x):\n  from helper import g as h\n  return h(x)",
            "helper.py": "def g(x): return x",
        },
        {
            "main.py": "import helper\ndef f(x):\n  from helper import g as h\n  return h(x)",
            "helper.py": "def g(x): return -x",
        },
    ),
    "a relative import inside": (
        {
            "main.py": "from pkg.a import f",
            "pkg/__init__.py": "from . import b",
            "pkg/b.py": "def g(x): return x",
            "pkg/a.py": "def f(x):\n  from . import b\n  return b.g(x)",
        },
        {
            "main.py": "from pkg.a import f",
            "pkg/__init__.py": "from . import b",
            "pkg/b.py": "def g(x): return -x",
            "pkg/a.py": "def f(x):\n  from . import b\n  return b.g(x)",
        },
    ),
    "an import inside, used by a nested function": (
        {
            "main.py": "import helper\ndef f(x):\n  import helper\n  return (lambda: helper.g(x))()",
            "helper.py": "g = abs",
        },
        {
            "main.py": "import helper\ndef f(x):\n  import helper\n  return (lambda: helper.g(x))()",
            "helper.py": "g = int",
        },
    ),
    "a module in a closure": (
        {
            "main.py": "def make():\n  import helper\n  def f(x): return helper.g(x)\n  return f\nf = make()",
            "helper.py": "g = abs",
        },
        {
            "main.py": "def make():\n  import helper\n  def f(x): return helper.g(x)\n  return f\nf = make()",
            "helper.py": "g = int",
        },
    ),
    # What was done to it.
    "a closure's value": (
        "def make(k):\n  def f(x): return x + k\n  return f\nf = make(1)",
        "def make(k):\n  def f(x): return x + k\n  return f\nf = make(2)",
    ),
    "a closure's function": (
        "def make(g):\n  def f(x): return g(x)\n  return f\nf = make(lambda x: x + 1)",
        "def make(g):\n  def f(x): return g(x)\n  return f\nf = make(lambda x: x + 2)",
    ),
    "a shared closure cell": (
        "def make():\n  n = 0\n  def a():\n    nonlocal n\n    n += 1\n  def b(): return n\n  return a, b\n"
        "A, B = make()\ndef f(x): A(); return B()",
        "def make():\n  n = 0\n  def a():\n    nonlocal n\n    n += 1\n  def b(): return n\n  return a, b\n"
        "A, _ = make()\n_, B = make()\ndef f(x): A(); return B()",
    ),
    "a decorator": (
        "def twice(g):\n  def w(x): return g(g(x))\n  return w\n@twice\ndef f(x): return x + 1",
        "def twice(g):\n  def w(x): return g(x)\n  return w\n@twice\ndef f(x): return x + 1",
    ),
    "what a decorator wraps": (
        "import functools\ndef log(g):\n  @functools.wraps(g)\n  def w(*a): return g(*a)\n  return w\n"
        "@log\ndef f(x): return x + 1",
        "import functools\ndef log(g):\n  @functools.wraps(g)\n  def w(*a): return g(*a)\n  return w\n"
        "@log\ndef f(x): return x + 2",
    ),
    "a decorator taken off": (
        "def log(g):\n  def w(*a): return g(*a)\n  return w\n@log\ndef f(x): return x",
        "def log(g):\n  def w(*a): return g(*a)\n  return w\ndef f(x): return x",
    ),
    "a function's attribute": ("def f(x): return f.k\nf.k = 1", "def f(x): return f.k\nf.k = 2"),
    "a partial's argument": (
        "import functools\ndef g(a, x): return a + x\nf = functools.partial(g, 1)",
        "import functools\ndef g(a, x): return a + x\nf = functools.partial(g, 2)",
    ),
    "a nested partial's keyword": (
        "import functools as t\ndef g(x, a=0, b=0): return a + x\nf = t.partial(t.partial(g, a=1), b=1)",
        "import functools as t\ndef g(x, a=0, b=0): return a + x\nf = t.partial(t.partial(g, a=2), b=1)",
    ),
    "what a partial calls": (
        "import functools\ndef g(a, x): return a + x\nf = functools.partial(g, 1)",
        "import functools\ndef g(a, x): return a - x\nf = functools.partial(g, 1)",
    ),
    "a cached function": (
        "import functools\n@functools.lru_cache\ndef g(x): return x + 1\ndef f(x): return g(x)",
        "import functools\n@functools.lru_cache\ndef g(x): return x + 2\ndef f(x): return g(x)",
    ),
    "a single-dispatch implementation": (
        "import functools as t\n@t.singledispatch\ndef g(x): return 0\n@g.register(int)\ndef _(x): return 1\n"
        "def f(x): return g(x)",
        "import functools as t\n@t.singledispatch\ndef g(x): return 0\n@g.register(int)\ndef _(x): return 2\n"
        "def f(x): return g(x)",
    ),
    "a context manager": (
        "import contextlib\n@contextlib.contextmanager\ndef g(): yield 1\ndef f(x):\n  with g() as y: return y",
        "import contextlib\n@contextlib.contextmanager\ndef g(): yield 2\ndef f(x):\n  with g() as y: return y",
    ),
    "recursion": (
        "def g(n): return f(n - 1) if n else 1\ndef f(n): return g(n - 1) if n else 0",
        "def g(n): return f(n - 1) if n else 2\ndef f(n): return g(n - 1) if n else 0",
    ),
    # Annotations: kernel languages compile them.
    "an annotation": ("def f(x: int): return x", "def f(x: float): return x"),
    "what an annotation stands for": ("T = int\ndef f(x: T): return x", "T = float\ndef f(x: T): return x"),
    "what a string annotation stands for": ("T = int\ndef f(x: 'T'): return x", "T = float\ndef f(x: 'T'): return x"),
    "what an annotation in an annotation stands for": (
        "T = int\ndef f(x: list['T']): return x",
        "T = float\ndef f(x: list['T']): return x",
    ),
    "what a forward reference stands for": (
        "import typing\nT = int\ndef f(x: typing.Optional['T']): return x",
        "import typing\nT = float\ndef f(x: typing.Optional['T']): return x",
    ),
    "what a quoted annotation stands for among strings": (
        "from __future__ import annotations\nT = int\ndef f(x: 'T'): return x",
        "from __future__ import annotations\nT = float\ndef f(x: 'T'): return x",
    ),
    "a local annotation": ("def f(x):\n  y: int = x\n  return y", "def f(x):\n  y: float = x\n  return y"),
    "a generic annotation": ("def f(x: list[int]): return x", "def f(x: list[str]): return x"),
    "a monkeypatched library": (
        "import json\ndef f(x): return json.dumps(x)",
        "import json\ndumps = json.dumps\ndef mine(x): return ''\njson.dumps = mine\ndef f(x): return json.dumps(x)\n",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_changes_the_fingerprint(tmp_path: Path, fingerprint_in: Fingerprint, name: str) -> None:
    import json

    before, after = CHANGES[name]
    original = json.dumps
    try:
        one = fingerprint_in(tmp_path / "one", before)
        other = fingerprint_in(tmp_path / "other", after)
    finally:
        json.dumps = original
    assert one != other


@pytest.mark.parametrize("name", CHANGES)
def test_the_same_program_elsewhere_has_the_same_fingerprint(
    tmp_path: Path, fingerprint_in: Fingerprint, name: str
) -> None:
    before, _ = CHANGES[name]
    assert fingerprint_in(tmp_path / "one", before) == fingerprint_in(tmp_path / "a" / "deeper" / "place", before)


#: What only the text tells; kernel languages read it.
TEXT_ONLY = {"a local annotation"}


@pytest.mark.parametrize("name", [name for name in CHANGES if isinstance(CHANGES[name][0], str)])
def test_a_change_is_seen_without_the_text_too(name: str) -> None:
    """What exec, a zipped application or a file edited since leaves: bytecode alone."""
    import json

    original = json.dumps
    found = []
    try:
        for text in (*CHANGES[name], CHANGES[name][0]):
            json.dumps = original
            namespace: dict[str, Any] = {"__name__": "main"}
            exec(compile(textwrap.dedent(str(text)), "<string>", "exec", dont_inherit=True), namespace)
            found.append(fingerprint(namespace["f"]))
    finally:
        json.dumps = original
    assert found[0] == found[2]
    assert (found[0] == found[1]) == (name in TEXT_ONLY)


def test_what_an_exception_table_covers_counts() -> None:
    def f(x: int) -> object:
        try:
            return 1 / x
        except ZeroDivisionError:
            return 0

    bare = f.__code__.replace(co_filename="<nowhere>")
    codes = (bare, bare.replace(co_exceptiontable=b""), bare.replace(co_firstlineno=99))
    found = [fingerprint(FunctionType(code, f.__globals__, "f")) for code in codes]
    assert found[0] != found[1]
    assert found[0] == found[2]


SAME: dict[str, tuple[Files, Files]] = {
    "comments and layout": (
        "def f(x, y=1): return g(x + 1)\ndef g(x): return x",
        "# what it is\n\n\ndef f( x,\n  y = 1 ): # adds\n    # one\n    return g(\n  x + 1)\n\ndef g(x): return x",
    ),
    "another function of the module": (
        "def g(): return 1\ndef f(x): return x",
        "def g(): return 2\ndef f(x): return x",
    ),
    "another global": ("K = 1\ndef f(x): return x", "K = 2\ndef f(x): return x"),
    "another name of an imported module": (
        {"main.py": USES_HELPER, "helper.py": "def scale(x): return x\nK = 1"},
        {"main.py": USES_HELPER, "helper.py": "def scale(x): return x\nK = 2"},
    ),
    "the line of a nested class": (
        "def f(x):\n  class C:\n    def g(self): self.a = self.b = self.c = 1\n  return C",
        "\n" * 500 + "def f(x):\n  class C:\n    def g(self): self.a = self.b = self.c = 1\n  return C",
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_what_does_not_matter_does_not_count(tmp_path: Path, fingerprint_in: Fingerprint, name: str) -> None:
    before, after = SAME[name]
    assert fingerprint_in(tmp_path / "one", before) == fingerprint_in(tmp_path / "other", after)


def test_a_constant_in_a_function_made_by_exec_counts() -> None:
    def make(text: str) -> object:
        namespace: dict[str, object] = {}
        exec(text, namespace)
        return namespace["f"]

    one = fingerprint(make("def f(x): return x + 1"))
    assert one != fingerprint(make("def f(x): return x + 2"))
    assert one == fingerprint(make("def f(x): return x + 1"))


def test_an_object_put_among_the_constants_counts() -> None:
    def f() -> object:
        return "placeholder"

    def with_constant(value: object) -> str:
        constants = tuple(value if item == "placeholder" else item for item in f.__code__.co_consts)
        return fingerprint(FunctionType(f.__code__.replace(co_consts=constants), {}))

    assert with_constant([1]) == with_constant([1]) != with_constant([2])
    assert with_constant(lambda: 1) == with_constant(lambda: 1) != with_constant(lambda: 2)


def test_changes_between_two_calls_are_seen(tmp_path: Path, program: Program) -> None:
    with program(tmp_path, "K = {'a': [1]}\ndef g(): return 1\ndef f(): return K, g()") as main:
        seen = [fingerprint(main.f)]
        main.K["a"][0] = 2
        seen.append(fingerprint(main.f))
        exec("def g(): return 2", main.__dict__)
        seen.append(fingerprint(main.f))
        main.f.__code__ = (lambda: (K, g(), 3)).__code__  # type: ignore[name-defined]  # noqa: F821
        seen.append(fingerprint(main.f))
        main.K["a"][0] = 1
        seen.append(fingerprint(main.f))
    assert len(set(seen)) == len(seen)


def test_entering_a_cycle_at_another_place_gives_another_fingerprint_and_each_is_stable(
    tmp_path: Path, fingerprint_in: Fingerprint
) -> None:
    text = "def g(n): return f(n - 1)\ndef f(n): return g(n - 1)"
    first = [fingerprint_in(tmp_path / "one", text, name) for name in "fg"]
    assert first == [fingerprint_in(tmp_path / "two", text, name) for name in "fg"]
    assert first[0] != first[1]


def test_a_chain_of_ten_thousand_helpers_needs_no_stack() -> None:
    lines = [f"def f{at}(x): return f{at + 1}(x)" for at in range(10_000)]
    namespace: dict[str, object] = {}
    exec("\n".join([*lines, "def f10000(x): return x"]), namespace)
    one = fingerprint(namespace["f0"])
    exec("def f10000(x): return -x", namespace)
    assert fingerprint(namespace["f0"]) != one


def test_running_and_tracing_do_not_change_the_fingerprint(tmp_path: Path, program: Program) -> None:
    import sys

    with program(tmp_path, "def f(x):\n  t = 0\n  for i in range(x): t += i * i\n  return [t, f.__name__]") as main:
        before = fingerprint(main.f)
        for _ in range(100):
            main.f(1000)
        traced = []
        sys.settrace(lambda frame, event, arg: traced.append(event))
        try:
            main.f(10)
            assert fingerprint(main.f) == before
        finally:
            sys.settrace(None)
        assert traced
        assert fingerprint(main.f) == before


def test_combining_flags_does_not_change_the_fingerprint(tmp_path: Path, program: Program) -> None:
    text = "import enum\nclass E(enum.Flag):\n  A = 1\n  B = 2\n  C = 4\ndef f(x): return E.A | E.B | ~E.C"
    with program(tmp_path, text) as main:
        before = fingerprint(main.f)
        main.f(1)
        assert fingerprint(main.f) == before
