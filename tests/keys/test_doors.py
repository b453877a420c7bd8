"""Every row of the table of doors: a function that goes through one has no fingerprint, and is told which."""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

import pytest

from hotstart.errors import UncacheableError
from hotstart.keys.functions import distributions, fingerprint
from hotstart.keys.functions.doors import DOORS

MODULES = sorted({module for _, module, _ in DOORS})


def load(name: str) -> ModuleType | None:
    """A module of the table; None where this Python or this machine has none (winreg, imp, dbm.gnu)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return importlib.import_module(name)
        except ImportError:
            return None


def function(text: str, **names: Any) -> Any:
    namespace: dict[str, Any] = {"__name__": "doors_program", **names}
    exec(text, namespace)
    return namespace["f"]


def has(module: ModuleType, path: str) -> bool:
    value: Any = module
    for name in path.split("."):
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
    return True


@pytest.mark.parametrize("name", MODULES)
def test_every_door_is_refused_by_name(name: str) -> None:
    module = load(name)
    if module is None:
        assert name.partition(".")[0] in sys.stdlib_module_names or sys.version_info > (3, 11)
        return
    there = [door for _, of, doors in DOORS if of == name for door in doors.split() if has(module, door)]
    # Libraries that other tests load put functions of their own in some places; those count by content.
    there = [door for door in there if not is_replaced(vars(module).get(door.partition(".")[0]))]
    assert there
    top = name.partition(".")[0]
    for door in there:
        # As ``import a.b`` and ``a.b.c()``, as ``from a.b import c``, and as an import in the function itself.
        first, _, rest = door.partition(".")
        rest = rest and f".{rest}"
        ways = [
            function(f"def f(x): return {name}.{door}(x)", **{top: sys.modules[top]}),
            function(f"def f(x): return alias{rest}(x)", alias=vars(module)[first]),
            function(f"def f(x):\n  from {name} import {first} as inner\n  return inner{rest}(x)"),
        ]
        for way, expected in zip(ways, (door, rest or "alias", door), strict=True):
            with pytest.raises(UncacheableError) as caught:
                fingerprint(way)
            assert expected in str(caught.value)


def test_no_name_is_in_the_table_by_mistake() -> None:
    """What no supported Python has is a misspelling. Those of other systems and older Pythons are listed here."""
    elsewhere = {
        *("ctypes.OleDLL", "ctypes.WinDLL", "os.listdrives", "os.path.isjunction", "os.path.isdevdrive"),
        *("os.process_cpu_count", "os.startfile", "select.devpoll", "select.kqueue", "selectors.KqueueSelector"),
        *("selectors.DevpollSelector", "sys.getwindowsversion", "sys._getframemodulename", "uuid.uuid6", "uuid.uuid7"),
        *("uuid.uuid8", "mimetypes.guess_file_type", "platform.win32_is_iot", "configparser.SafeConfigParser"),
        *("pkgutil.find_loader", "pkgutil.get_loader", "urllib.request.URLopener", "urllib.request.FancyURLopener"),
        *("datetime.datetime.utcnow", "ssl.RAND_pseudo_bytes", "gettext.install", "sys._current_exceptions"),
    }
    elsewhere |= {f"importlib.resources.{name}" for name in ("contents", "is_resource", "path")}
    missing = {
        f"{name}.{door}"
        for _, name, doors in DOORS
        if (module := load(name)) is not None
        for door in doors.split()
        if not has(module, door)
    }
    assert missing <= elsewhere
    assert {name for name in MODULES if name.partition(".")[0] not in sys.stdlib_module_names} <= {
        *("crypt", "imghdr", "imp", "mailcap", "nis", "nntplib", "sndhdr", "spwd", "telnetlib")  # gone in 3.12 and 3.13
    }


def is_replaced(value: Any) -> bool:
    code = getattr(value, "__code__", None)
    return code is not None and distributions.owner(code.co_filename) != distributions.PYTHON


METHODS = {
    "a subclass": "class Mine(datetime.date): pass\ndef f(): return Mine.today()",
    "a bound method": "now = datetime.datetime.now\ndef f(): return now()",
    "a class in a variable": "def f():\n  cls = datetime.datetime\n  return cls.now()",
    "a class as a default": "def f(cls=datetime.datetime): return cls.now()",
    "a class passed on": "def g(c): return c.now()\ndef f(): return g(datetime.datetime).now",
    "the module passed on": "def g(m): return m.datetime.now()\ndef f(): return g(datetime)",
    "a C library opened inside": "import ctypes\ndef f(): return ctypes.CDLL('x').foo()",
    "a parser that reads": "import configparser\ndef f():\n  c = configparser.ConfigParser()\n  return c.read('x')",
    "a file under another name": "import gzip as g\ndef f(): return g.open('x').read()",
}


@pytest.mark.parametrize("name", METHODS)
def test_a_door_is_found_behind(name: str) -> None:
    with pytest.raises(UncacheableError):
        fingerprint(function("import datetime\n" + METHODS[name]))


ALLOWED = {
    "a date that is given": "def f(x): return datetime.date(2020, 1, x) + datetime.timedelta(days=1)",
    "reading a date from text": "def f(x): return datetime.datetime.fromisoformat(x)",
    "joining paths": "import os\ndef f(x): return os.path.join('a', os.path.basename(x), os.fspath(x))",
    "a pure path": "import pathlib\ndef f(x): return pathlib.PurePath(x).name",
    "compressing": "import gzip, zlib\ndef f(x): return gzip.compress(zlib.compress(x))",
    "JSON": "import json\ndef f(x): return json.loads(json.dumps(x))",
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_answers_the_same_everywhere_is_no_door(name: str) -> None:
    assert len(fingerprint(function("import datetime\n" + ALLOWED[name]))) == 64
