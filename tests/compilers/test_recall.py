"""recall answers as fingerprint does, whatever is changed between two calls."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotstart import UncacheableError
from hotstart.compilers import recall as recall_module
from hotstart.compilers.recall import recall
from hotstart.keys.functions import fingerprint

SOURCE = """
import math
import os
import other

SCALE = 1
TABLE = {"bm": 64, "bn": 128}
SIZES = (1, (2, 3))

def leaf(x):
    return x * SCALE

def middle(x, step=2, *, limit=3):
    return leaf(x) + TABLE["bm"] + step

def kernel(x, n=16):
    for i in range(len(x)):
        x = middle(x) + other.offset + math.sqrt(n) + SIZES[0]
    return x

def recursive(n):
    return recursive(n - 1) if n else leaf(n)

def twice(x):
    return first(x) + second(x)

first = second = leaf

def maker(n):
    def made(x):
        return x + n
    return made

made = maker(1)

def pair(n):
    def one(x):
        return x + n
    def two(x):
        return x * n
    return one, two

one, two = pair(1)

def both(x):
    return one(x) + two(x)

def asks():
    return os.getenv("HOTSTART_TEST_VARIABLE")

def sees():
    return globals()

def absent():
    return missing_name
"""

NAMES = ("leaf", "middle", "kernel", "recursive", "twice", "made", "both", "asks", "sees", "absent")
_number = itertools.count()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("recalled")
    other = ModuleType("other")
    vars(other)["offset"] = 1
    sys.modules["other"] = other
    yield path
    del sys.modules["other"]


def load(directory: Path) -> ModuleType:
    path = directory / f"kernels_{next(_number)}.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(function: Callable[[Any], str], value: object) -> object:
    try:
        return function(value)
    except UncacheableError as error:
        return str(error)


def agree(module: ModuleType) -> None:
    for name in NAMES:
        function = getattr(module, name, None)
        if callable(function):
            expected = answer(fingerprint, function)
            assert answer(recall, function) == expected, name
            assert answer(recall, function) == expected, f"{name}, the second time"


VALUES = (1, True, 1.0, -0.0, 0.0, "1", b"1", None, (1,), (True,), [1], {"a": 1}, float("nan"), 2**70, len, int, math)


def _set(name: str) -> Callable[[Any, Any], None]:
    return lambda module, value: setattr(module, name, value)


def _code(module: Any, value: Any) -> None:
    module.leaf.__code__ = (lambda x: x + 5).__code__ if value else module.recursive.__code__


def _similar(module: Any, value: Any) -> None:
    """Another function that reads the same names."""
    exec(f"def similar(x):\n    return x * SCALE + {len(str(value))}", vars(module))
    module.leaf.__code__ = module.similar.__code__.replace(co_filename=module.__file__)


def _unshared(module: Any, value: Any) -> None:
    """Closures that look the same and no longer share their cell."""
    module.one, module.two = module.pair(value)[0], module.pair(value)[1]


def _cell(module: Any, value: Any) -> None:
    module.made.__closure__[0].cell_contents = value


def _defaults(module: Any, value: Any) -> None:
    module.middle.__defaults__ = (value,)


def _named(module: Any, value: Any) -> None:
    module.middle.__kwdefaults__ = {"limit": value, "other": value}


def _no_defaults(module: Any, value: Any) -> None:
    module.middle.__defaults__ = module.middle.__kwdefaults__ = None


def _table(module: Any, value: Any) -> None:
    module.TABLE["bm"] = value


def _order(module: Any, value: Any) -> None:
    module.TABLE = dict(reversed(list(module.TABLE.items())))


def _attribute(module: Any, value: Any) -> None:
    module.leaf.knob = value


def _annotation(module: Any, value: Any) -> None:
    module.leaf.__annotations__["x"] = value


def _renamed(module: Any, value: Any) -> None:
    module.leaf.__qualname__ = f"leaf{len(str(value))}"


def _foreign(module: Any, value: Any) -> None:
    vars(sys.modules["other"])["offset"] = value


def _shadow(module: Any, value: Any) -> None:
    module.len = value


def _split(module: Any, value: Any) -> None:
    module.second = type(module.leaf)(module.leaf.__code__, vars(module), "leaf")


def _remade(module: Any, value: Any) -> None:
    module.made = module.maker(value)


def _variable(module: Any, value: Any) -> None:
    os.environ["HOTSTART_TEST_VARIABLE"] = type(value).__name__


def _bind(module: Any, value: Any) -> None:
    module.missing_name = value


def _edited(module: Any, value: Any) -> None:
    assert module.__file__ is not None
    path = Path(module.__file__)
    path.write_text(path.read_text().replace("x * SCALE", "SCALE * x") + "# edited\n")


CHANGES = (
    *(_set("SCALE"), _set("SIZES"), _set("TABLE"), _set("leaf"), _set("first"), _set("math"), _set("other")),
    *(
        _code,
        _similar,
        _unshared,
        _cell,
        _defaults,
        _named,
        _no_defaults,
        _table,
        _order,
        _attribute,
        _annotation,
        _renamed,
        _foreign,
    ),
    *(_shadow, _split, _remade, _variable, _bind, _edited),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.sampled_from(CHANGES), st.sampled_from(VALUES)), min_size=1, max_size=5))
def test_recall_agrees_with_fingerprint_after_any_change(
    directory: Path, changes: list[tuple[Callable[[Any, Any], None], Any]]
) -> None:
    module = load(directory)
    vars(sys.modules["other"])["offset"] = 1
    agree(module)
    for change, value in changes:
        try:
            change(module, value)
        except (AttributeError, TypeError, ValueError):
            continue  # an earlier change took away what this one changes
        agree(module)


@pytest.mark.parametrize("change", CHANGES)
def test_every_kind_of_change_is_seen(directory: Path, change: Callable[[Any, Any], None]) -> None:
    module = load(directory)
    vars(sys.modules["other"])["offset"] = 1
    agree(module)
    for value in VALUES:
        try:
            change(module, value)
        except (AttributeError, TypeError, ValueError):
            continue  # this value cannot be put there
        agree(module)


def test_what_is_plain_is_recalled_without_another_walk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(directory)
    expected = {name: recall(getattr(module, name)) for name in ("kernel", "recursive", "twice", "made")}

    def walked(function: object) -> str:
        raise AssertionError(f"{function} was walked again")

    monkeypatch.setattr(recall_module, "fingerprint", walked)
    assert {name: recall(getattr(module, name)) for name in expected} == expected
    # Made anew with the same constants it is the same function, made with others another.
    assert recall(module.maker(1)) == expected["made"]
    with pytest.raises(AssertionError, match="walked again"):
        recall(module.maker(2))


def test_several_states_of_one_function_are_remembered_side_by_side(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(directory)
    prints = [recall(module.maker(n)) for n in range(4)]
    monkeypatch.setattr(recall_module, "fingerprint", None)
    assert [recall(module.maker(n)) for n in range(4)] == prints
    assert len(set(prints)) == 4


def test_what_is_not_a_plain_function_goes_the_long_way() -> None:
    class Thing:
        def __call__(self) -> int:
            return 1

    for value in (Thing, Thing(), Thing().__call__, len, lambda: Thing):
        assert recall(value) == fingerprint(value)
