"""What cannot be fingerprinted is refused with the way to it, and only when the code can run into it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from hotstart.errors import UncacheableError, UsageError
from hotstart.keys.functions import fingerprint, register
from hotstart.keys.functions.walk import HANDLERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    Program = Callable[..., AbstractContextManager[Any]]
    Fingerprint = Callable[..., str]

LOCK = """
    import threading
    LOCK = threading.Lock()
    def helper():
        with LOCK: return 1
    def f(): return helper()
"""

REFUSED: dict[str, tuple[str, str]] = {
    "a lock": (LOCK, "f → helper → global LOCK"),
    "a generator": ("G = (i for i in range(3))\ndef f(): return next(G)", "f → global G"),
    "an iterator": ("G = iter([1])\ndef f(): return next(G)", "f → global G"),
    "an open file": ("import os\nF = open(os.devnull)\ndef f(): return F.read()", "f → global F"),
    "a thread": ("import threading\nT = threading.Thread()\ndef f(): return T", "f → global T"),
    "a thread's own data": ("import threading\nT = threading.local()\ndef f(): return T.x", "f → global T"),
    "a weak reference": ("import weakref\nclass C: pass\nR = weakref.ref(C)\ndef f(): return R()", "f → global R"),
    "a context variable": (
        "import contextvars\nV = contextvars.ContextVar('v')\ndef f(): return V.get()",
        "f → global V",
    ),
    "a random number generator": ("import random\nR = random.Random(1)\ndef f(): return R.random()", "f → global R"),
    "the random module": ("import random\ndef f(): return random.random()", "f → global random.random"),
    "a path": ("import pathlib\nP = pathlib.Path('x')\ndef f(): return P.read_text()", "f → global P"),
    "eval": ("def f(x): return eval(x)", "f → eval"),
    "exec in a helper": ("def g(x): exec(x)\ndef f(x): return g(x)", "f → g → exec"),
    "a computed import": ("import importlib\ndef f(x): return importlib.import_module(x)", "importlib.import_module"),
    "an import hidden from view": ("def f(x): return __import__(x)", "f → __import__"),
    "sys.modules": ("import sys\ndef f(x): return sys.modules[x]", "f → global sys.modules"),
    "a frame": ("import sys\ndef f(): return sys._getframe(1).f_globals", "f"),
    "another function's globals": ("def g(): pass\ndef f(x): return g.__globals__[x]", "f"),
    "all subclasses": ("class C: pass\ndef f(): return C.__subclasses__()", "f"),
    "a file": ("def f(): return open('x').read()", "f → open"),
    "a directory": ("import os\ndef f(): return os.listdir('.')", "f → os.listdir"),
    "the place of the module": ("def f(): return __file__", "f → __file__"),
    "the place of another": ("import json\ndef f(): return json.__file__", "f → json.__file__"),
    "the clock": ("import time\ndef f(): return time.time()", "f → time.time"),
    "the number of processors": ("import os\ndef f(): return os.cpu_count()", "f → os.cpu_count"),
    "another program": ("import subprocess\ndef f(): return subprocess.run('x')", "f → subprocess.run"),
    "an alias of a door": ("from time import time as now\ndef f(): return now()", "f → now"),
    "a door in a default": ("import time\ndef f(now=time.time): return now()", "f → default now"),
    "the module os as a value": ("import os\ndef f(): return g(os)\ndef g(o): return o.environ['A']", "f → global os"),
    "in a list": ("import threading\nL = [1, threading.Lock()]\ndef f(): return L", "f → global L → [1]"),
    "in a dict": ("import threading\nD = {'k': threading.Lock()}\ndef f(): return D", "f → global D → ['k']"),
    "in a closure": (
        "import threading\ndef make(l):\n  def f(): return l\n  return f\nf = make(threading.Lock())",
        "f → closure l",
    ),
    "in a partial": (
        "import threading, functools\ndef g(l): return l\nf = functools.partial(g, threading.Lock())",
        "arguments",
    ),
    "in an instance": (
        "import threading\nclass C:\n  def __init__(s): s.lock = threading.Lock()\nc = C()\ndef f(): return c",
        "f → global c → .lock",
    ),
    "in an instance of a method": (
        "import threading\nclass C:\n  def __init__(s): s.lock = threading.Lock()\n  def m(s):\n    with s.lock: pass\n"
        "f = C().m",
        "C.m → self.lock",
    ),
    "in a method called by name": (
        "import time\nclass C:\n  def now(s): return time.time()\nc = C()\ndef f(): return c.now()",
        "f → global c → C → C.now → time.time",
    ),
    "in a special method": (
        "import time\nclass C:\n  def __len__(s): return time.time()\nc = C()\ndef f(): return len(c)",
        "time.time",
    ),
    "in a property called by name": (
        "import time\nclass C:\n  @property\n  def now(s): return time.time()\nc = C()\ndef f(): return c.now",
        "time.time",
    ),
    "in any method when the name is computed": (
        "import time\nclass C:\n  def now(s): return time.time()\nc = C()\ndef f(n): return getattr(c, n)()",
        "time.time",
    ),
    "in a method that a called method calls": (
        "import time\nclass C:\n  def a(s): return s.b()\n  def b(s): return time.time()\n"
        "c = C()\ndef f(): return c.a()",
        "time.time",
    ),
    "in a method that is also called another way": (
        "import time\nclass C:\n  k = 1\n  def now(s): return time.time()\n"
        "c = C()\nz = C.now\ndef a(): return b()\ndef b(): return d()\ndef d(): return z(c)\ndef f(): return c.k, a()",
        "time.time",
    ),
    "in a method that a library may call": (
        "import time, json\nclass E(json.JSONEncoder):\n  def default(s, o): return time.time()\n"
        "def f(x): return json.dumps(x, cls=E)",
        "time.time",
    ),
    "in a class that is asked for itself": (
        "import time\nclass f:\n  def now(s): return time.time()",
        "f → f.now → time.time",
    ),
    "a class that hides its attributes": (
        "class C:\n  __dict__ = property(lambda self: {})\nc = C()\nc.k = 1\ndef f(x): return c.k",
        "f → global c",
    ),
    "a set whose members look alike": ("S = {object(), object()}\ndef f(x): return x in S", "f → global S"),
    "an unloaded module of one's own": ("def f():\n  import notyet\n  return notyet.k", "import notyet"),
    "the whole environment": ("import os\ndef f(): return dict(os.environ)", "f → os.environ"),
    "a computed variable": ("import os\ndef f(n): return os.environ[n]", "f → os.environ"),
    "a variable with a computed half": ("import os\ndef f(n): return os.getenv('A' + n)", "f → os.getenv"),
    "one of two variables": (
        "import os\ndef f(c):\n  r = ('A' if c else 'B') in os.environ\n  for i in range(3): r = not r\n  return r",
        "f → os.environ",
    ),
    "a variable by keyword": ("import os\ndef f(): return os.getenv(default='A', key='B')", "f → os.getenv"),
    "the environment under another name": ("import os\nE = os.environ\ndef f(n): return E[n]", "f → E"),
    "the environment in a closure": (
        "import os\ndef make(e):\n  def f(): return e['A']\n  return f\nf = make(os.environ)",
        "f → closure e",
    ),
    "bytes of the environment": ("import os\ndef f(): return os.environb[b'A']", "f → global os.environb"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_the_way_to_it(tmp_path: Path, program: Program, name: str) -> None:
    text, way = REFUSED[name]
    (tmp_path / "notyet.py").write_text("k = 1")
    with program(tmp_path, text) as main:
        with pytest.raises(UncacheableError) as caught:
            fingerprint(main.f)
        assert way in caught.value.field
        if " → " in way and not way.endswith("time.time"):
            assert caught.value.field.startswith(way)


ALLOWED: dict[str, str] = {
    "a method nobody calls that reads files": (
        "class C:\n  k = 1\n  def save(s, path): open(path, 'w').write(str(s.k))\nc = C()\ndef f(): return c.k"
    ),
    "a class method nobody calls that runs code": (
        "class C:\n  k = 1\n  @classmethod\n  def load(c, t): return eval(t)\nc = C()\ndef f(): return c.k"
    ),
    "an attribute that the method does not read": (
        "import threading\nclass C:\n  def __init__(s): s.k, s.lock = 1, threading.Lock()\n"
        "  def m(s): return s.k\nf = C().m"
    ),
    "a global lock that only an uncalled method takes": (
        "import threading\nL = threading.Lock()\nclass C:\n  k = 1\n  def a(s):\n    with L: pass\n"
        "c = C()\ndef f(): return c.k"
    ),
    "a logger": "import logging\nlog = logging.getLogger('x')\ndef f():\n  log.info('x')\n  return 1",
    "printing": "import sys\ndef f():\n  print(1, file=sys.stderr)\n  return 1",
    "a missing library": "def f():\n  try:\n    import no_such_library\n  except ImportError: return 0",
    "an unloaded module of the standard library": "def f():\n  import this\n  return this.s",
    "a sentinel": "MISSING = object()\ndef f(x): return x is MISSING",
    "typing": (
        "from typing import *\nT = TypeVar('T')\n"
        "def f(x: Optional[Callable[[T], 'int']]) -> Union[T, list[int]]: return x"
    ),
    "a name for checkers only": (
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import nothing\n"
        "def f(x: nothing.At) -> all: return x"
    ),
    "a decimal and a date": (
        "import decimal, datetime as d\nK = decimal.Decimal('1.1'), d.datetime(2020, 1, 1, tzinfo=d.timezone.utc)\n"
        "def f(): return K"
    ),
    "a fraction": "import fractions\nK = fractions.Fraction(1, 3)\ndef f(): return K",
    "a set of classes": "class A: pass\nclass B: pass\nS = {A, B, int, len}\ndef f(x): return type(x) in S",
    "an exception class": "class E(ValueError): pass\ndef f(): raise E('x')",
    "super()": "class A:\n  def m(s): return 1\nclass B(A):\n  def m(s): return super().m()\nf = B().m",
    "a coroutine function": "async def f(x): return x",
    "a cached property": (
        "import functools\nclass C:\n  @functools.cached_property\n  def k(s): return 1\nc = C()\ndef f(): return c.k"
    ),
    "an abstract base class": (
        "import abc\nclass A(abc.ABC):\n  @abc.abstractmethod\n  def m(s): ...\ndef f(x): return A"
    ),
    "a protocol": "import typing\nclass P(typing.Protocol):\n  def m(self) -> int: ...\ndef f(x: P): return x",
    "a generic class": (
        "import typing\nT = typing.TypeVar('T')\nclass G(typing.Generic[T]):\n  pass\ndef f(x: G[int]): return G()"
    ),
    "an iterator made inside": "import itertools\ndef f(x): return list(itertools.chain(x, itertools.count()))",
    "a frozen dataclass with slots": (
        "import dataclasses as d\n@d.dataclass(frozen=True, slots=True)\nclass C:\n  k: int\n"
        "  l: list = d.field(default_factory=list)\nc = C(1)\ndef f(): return c.k"
    ),
    "a string enum": "import enum\nclass E(enum.StrEnum):\n  A = enum.auto()\ndef f(x): return E(x)",
    "a slice and a range": "K = slice(1, None), range(3), ..., NotImplemented\ndef f(x): return x[K[0]]",
    "a built-in class": "K = int, type(None), type(lambda: 0), dict[str, int]\ndef f(x): return K",
}


@pytest.mark.parametrize("name", ALLOWED)
def test_it_is_not_refused_and_is_stable(tmp_path: Path, fingerprint_in: Fingerprint, name: str) -> None:
    text = ALLOWED[name]
    assert fingerprint_in(tmp_path / "one", text) == fingerprint_in(tmp_path / "two", text)


@pytest.mark.parametrize("value", [1, "def f(): pass", b"", None, (len,), {"f": len}])
def test_data_is_no_code(value: object) -> None:
    with pytest.raises(UsageError, match="hash_value"):
        fingerprint(value)


def test_a_handler_says_what_counts_of_a_class(tmp_path: Path, program: Program) -> None:
    text = "class C:\n  def __init__(s): s.k, s.g = 1, (i for i in ())\nc = C()\ndef f(): return c.k, c.g"
    with program(tmp_path, text) as main:
        with pytest.raises(UncacheableError, match=r"global c → \.g"):
            fingerprint(main.f)
        register("main.C", lambda value: {"k": value.k})
        try:
            before = fingerprint(main.f)
            main.c.g = None
            assert fingerprint(main.f) == before
            main.c.k = 2
            assert fingerprint(main.f) != before
            register("main.C", lambda value: value.nothing)
            with pytest.raises(UncacheableError, match="not as expected"):
                fingerprint(main.f)
        finally:
            del HANDLERS["main.C"]
            register("main.none", lambda value: value)  # forget what was found for C
            del HANDLERS["main.none"]


ENVIRONMENT = textwrap.dedent("""
    import os
    from os import environ, getenv as ask
    KEY = "HS_TEST"
    def f0(): return os.environ["HS_TEST"]
    def f1(): return os.environ.get("HS_TEST")
    def f2(): return os.environ.get("HS_TEST", "default")
    def f3(): return os.getenv("HS_TEST")
    def f4(): return os.getenv("HS_TEST", KEY.upper)
    def f5(): return "HS_TEST" in os.environ
    def f6(): return environ["HS_TEST"]
    def f7(): return ask("HS_TEST")
    def f8(): return os.environ[KEY]
    def f9():
        import os
        return os.environ["HS_OTHER"] + os.environ["HS_TEST"]
    def f10(): return [x for x in "ab" if os.environ["HS_TEST"] == x]
    def f11(): return f0()
    def f12(): return (lambda: os.environ["HS_TEST"])(), os.environ["HS_OTHER"]
    def f13(): return "HS_TEST" not in os.environ or os.environ["HS_TEST"] == "1"
    def f14():
        from os import environ as here
        return here["HS_TEST"]
    def f15(): os.environ.setdefault("HS_TEST", "1")
""")


@pytest.mark.parametrize("number", range(16))
def test_an_environment_variable_that_is_read_counts(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with program(tmp_path, ENVIRONMENT) as main:
        function = getattr(main, f"f{number}")
        monkeypatch.delenv("HS_TEST", raising=False)
        seen = [fingerprint(function)]
        for value in ("", "1"):
            monkeypatch.setenv("HS_TEST", value)
            seen.append(fingerprint(function))
        assert len(set(seen)) == 3
        monkeypatch.setenv("HS_UNRELATED", "1")
        assert fingerprint(function) == seen[-1]


def test_an_environment_put_in_the_place_of_the_real_one_counts_by_content(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    with program(tmp_path, ENVIRONMENT) as main:
        seen = [fingerprint(main.f3)]
        for answer in (lambda name: "1", lambda name: "2"):
            monkeypatch.setattr("os.getenv", answer)
            seen.append(fingerprint(main.f3))
        monkeypatch.undo()
        for value in ("1", "2"):
            monkeypatch.setattr("os.environ", {"HS_TEST": value})
            seen.append(fingerprint(main.f0))
    assert len(set(seen)) == len(seen)
