"""Whatever is changed of what a function reaches: recall answers as fingerprint does.

The changes are not chosen. All that can be reached from a module is looked for, and
everything about each object that can be set is set to something else.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

import pytest

from hotstart import UncacheableError
from hotstart.compilers.memoize import memoize_handle
from hotstart.compilers.recall import recall
from hotstart.keys.functions import fingerprint

SOURCE = '''
import json
import textwrap
import helpers

NUMBER = 1
LIST = [1, [2]]
TABLE = {"a": 1, "b": {"c": 2}}
TUPLE = (1, (2, "x"))

def spec():
    "fast"
def reads_doc():
    return spec.__doc__
def reads_name():
    return spec.__name__
def reads_module():
    return spec.__module__
def reads_attribute():
    return json.dumps.__doc__, textwrap.dedent.knob, spec.knob
def through_helper():
    return helpers.text_of()
def plain(x: int = 1, *, y="k"):
    return x + NUMBER + TUPLE[0] + TABLE["a"]
def nested():
    return plain() + LIST[0] + TABLE["b"]["c"]
def library(x):
    return json.dumps(textwrap.dedent(x))
def module_attribute():
    return helpers.VALUE, helpers.scale(2)

class Base:
    width = 1
    def get(self, n=2):
        return self.width + n
class Thing(Base):
    """What it is."""
    height: int = 2
    @property
    def area(self):
        return self.height * self.width
    @staticmethod
    def unit():
        return 1

THING = Thing()
THING.own = [1]

def instance():
    return THING.area + THING.own[0]
def of_class():
    return Thing.unit() + Thing.width

def make(n, table):
    def made(x=n):
        return x + n + table[0]
    return made

made = make(1, [5])
'''

HELPERS = """
VALUE = 1
def scale(x, by=2):
    return x * by * VALUE
def described():
    "what it says"
def text_of():
    return described.__doc__
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    loaded = []
    for name, text in (("helpers", HELPERS), ("everything", SOURCE)):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules[name] = made
        spec.loader.exec_module(made)
        loaded.append(made)
    yield loaded[1]
    for made in loaded:
        del sys.modules[made.__name__]


def reachable(module: ModuleType) -> list[Any]:
    """Everything that can be changed, each once; of libraries only what the module names."""
    found: dict[int, Any] = {}
    todo: list[Any] = [module, sys.modules["helpers"], json.dumps, textwrap.dedent]
    while todo:
        value = todo.pop()
        if id(value) in found:
            continue
        if isinstance(value, ModuleType):
            if value.__name__ not in ("everything", "helpers"):
                continue
            todo += [item for name, item in vars(value).items() if not name.startswith("__")]
        elif isinstance(value, FunctionType):
            todo += [cell.cell_contents for cell in value.__closure__ or ()]
        elif isinstance(value, type):
            if value.__module__ != "everything":
                continue
            todo += [value.__base__, *(item for name, item in vars(value).items() if not name.startswith("__"))]
        elif isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list | tuple):
            todo += value
        elif isinstance(value, property):
            todo.append(value.fget)
        elif isinstance(value, staticmethod):
            todo.append(value.__func__)
        elif type(value).__module__ == "everything":
            todo += [type(value), vars(value)]
        else:
            continue
        found[id(value)] = value
    return list(found.values())


Change = tuple[str, Callable[[], object], Callable[[], object]]


def changes_of(value: Any) -> Iterator[Change]:
    """What it is called, how it is made, how it is undone."""
    if isinstance(value, FunctionType):
        name = value.__qualname__
        code = value.__code__
        other = code.replace(co_consts=(*code.co_consts, "another"))
        for attribute, new in {
            "__doc__": "other words",
            "__name__": "renamed",
            "__qualname__": "renamed.too",
            "__module__": "elsewhere",
            "__code__": other,
            "__defaults__": (77,) * (code.co_argcount or 1),
            "__kwdefaults__": {"y": 78},
            "__annotations__": {"x": float},
            "knob": 79,
        }.items():
            yield from _attribute(f"{name}.{attribute}", value, attribute, new)
        if value.__kwdefaults__:
            yield from _items(f"{name}.__kwdefaults__", value.__kwdefaults__)
        for at, cell in enumerate(value.__closure__ or ()):
            if not isinstance(cell.cell_contents, type):
                yield from _attribute(f"{name} cell {at}", cell, "cell_contents", 80)
    elif isinstance(value, type):
        for attribute in [*vars(value), "new"]:
            if attribute not in ("__dict__", "__weakref__"):
                yield from _attribute(f"{value.__name__}.{attribute}", value, attribute, "81")
    elif isinstance(value, ModuleType):
        for attribute in [*vars(value), "new"]:
            if not attribute.startswith("__"):
                for new in (82, None, lambda: 83):
                    yield from _attribute(f"{value.__name__}.{attribute}", value, attribute, new)
    elif isinstance(value, dict):
        yield from _items("a dict", value)
    elif isinstance(value, list):
        yield "a list", lambda: value.append(84), lambda: value.pop()
    elif hasattr(value, "__dict__") and not isinstance(value, property | staticmethod | MappingProxyType):
        for attribute in [*vars(value), "new"]:
            yield from _attribute(f"an instance's {attribute}", value, attribute, 85)


def _attribute(label: str, value: Any, name: str, new: object) -> Iterator[Change]:
    has = name in value.__dict__ if isinstance(value, type | ModuleType) or name == "knob" else hasattr(value, name)
    old = (value.__dict__[name] if isinstance(value, type) else getattr(value, name)) if has else None
    yield (
        f"{label} = {new!r}",
        lambda: setattr(value, name, new),
        lambda: setattr(value, name, old) if has else delattr(value, name),
    )


def _items(label: str, value: dict[Any, Any]) -> Iterator[Change]:
    for key, old in list(value.items()):
        yield f"{label}[{key!r}]", partial(value.update, {key: 86}), partial(value.update, {key: old})
    yield f"{label}, another", lambda: value.update(another=87), lambda: value.pop("another")


def answer(function: Callable[[Any], str], value: object) -> object:
    try:
        return function(value)
    except UncacheableError as error:
        return str(error)


def test_recall_notices_whatever_fingerprint_does(module: ModuleType) -> None:
    names = [name for name, value in vars(module).items() if isinstance(value, FunctionType)]
    made = noticed = 0
    for value in reachable(module):
        for label, change, undo in changes_of(value):
            before = {name: answer(recall, getattr(module, name)) for name in names}
            try:
                change()
            except (TypeError, AttributeError, ValueError):
                continue  # Python does not let that be set
            made += 1
            try:
                for name in names:
                    function = vars(module).get(name)
                    if isinstance(function, FunctionType):
                        expected = answer(fingerprint, function)
                        assert answer(recall, function) == expected, f"{name} after {label}"
                        noticed += expected != before[name]
            finally:
                undo()
            for name in names:
                assert answer(recall, getattr(module, name)) == before[name], f"{name} after {label} was undone"
    assert made > 200
    assert noticed > 200


def test_a_handle_is_made_anew_when_a_description_that_is_read_changes(module: Any) -> None:
    make = memoize_handle(module.reads_doc)
    assert make() == "fast"
    module.spec.__doc__ = "slow"
    assert make() == module.reads_doc() == "slow"
    through = memoize_handle(module.through_helper)
    assert through() == "what it says"
    sys.modules["helpers"].described.__doc__ = "something else"
    assert through() == "something else"
