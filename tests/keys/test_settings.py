"""What is changed in a library's function or class without touching its code changes fingerprints all the same."""

from __future__ import annotations

import contextlib
import functools
import json
import textwrap
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest

from hotstart.keys.functions import fingerprint, installed


def uses_functions(x: Any) -> object:
    return json.dumps(textwrap.dedent(x)), functools.reduce, contextlib.suppress


def uses_classes(x: Any) -> object:
    return json.JSONEncoder(), Fraction(x)


def mine(*_: object) -> Any:
    return 1


def other(*_: object) -> Any:
    return 2


class Mine:
    knob = 1


def _code(function: Any) -> Any:
    code = function.__code__
    return code.replace(co_consts=tuple(b"other" if item == "\n" else item for item in (*code.co_consts, 0)))


#: What is changed, of what, and to what: each a change of its own.
CHANGES: dict[str, tuple[Callable[[], Any], str, Any]] = {
    "defaults": (lambda: textwrap.dedent, "__defaults__", (1,)),
    "other defaults": (lambda: textwrap.dedent, "__defaults__", (2,)),
    "a default that is a list": (lambda: textwrap.dedent, "__defaults__", ([1],)),
    "a default of the user's": (lambda: textwrap.dedent, "__defaults__", (mine,)),
    "another of the user's": (lambda: textwrap.dedent, "__defaults__", (other,)),
    "an object of the user's": (lambda: textwrap.dedent, "__defaults__", (Mine(),)),
    "keyword defaults": (lambda: json.dumps, "__kwdefaults__", {**(json.dumps.__kwdefaults__ or {}), "indent": 7}),
    "True for 1": (lambda: json.dumps, "__kwdefaults__", {**(json.dumps.__kwdefaults__ or {}), "indent": True}),
    "no keyword defaults": (lambda: json.dumps, "__kwdefaults__", None),
    "code": (lambda: textwrap.dedent, "__code__", _code(textwrap.dedent)),
    "wrapped": (lambda: textwrap.dedent, "__wrapped__", json.dumps),
    "an attribute of a class": (lambda: json.JSONEncoder, "item_separator", ";"),
    "another value of it": (lambda: json.JSONEncoder, "item_separator", "|"),
    "an object put into a class": (lambda: json.JSONEncoder, "key_separator", Mine()),
    "a class put into a class": (lambda: json.JSONEncoder, "key_separator", Mine),
    "a new method": (lambda: Fraction, "scaled", mine),
    "another new method": (lambda: Fraction, "scaled", other),
    "defaults of a method": (lambda: json.JSONEncoder.iterencode, "__defaults__", (True,)),
    "keyword defaults of a method": (lambda: Fraction.limit_denominator, "__kwdefaults__", {"x": 1}),
    "a setter of a property": (lambda: Fraction, "numerator", property(Fraction.numerator.fget, mine)),  # type: ignore[attr-defined]
    "another setter": (lambda: Fraction, "numerator", property(Fraction.numerator.fget, other)),  # type: ignore[attr-defined]
    "a deleter": (lambda: Fraction, "numerator", property(Fraction.numerator.fget, None, mine)),  # type: ignore[attr-defined]
}


def test_every_change_is_another_fingerprint_and_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def both() -> tuple[str, str]:
        return fingerprint(uses_functions), fingerprint(uses_classes)

    before = both()
    seen = {before: "nothing"}
    for name, (of, attribute, new) in CHANGES.items():
        with monkeypatch.context() as patch:
            patch.setattr(of(), attribute, new, raising=False)
            after = both()
            assert after not in seen, f"{name} is like {seen[after]}"
            seen[after] = name
        assert both() == before, f"{name} was undone"


def test_what_is_changed_in_place_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(uses_functions)
    named: Any = json.dumps.__kwdefaults__
    monkeypatch.setitem(named, "indent", 7)
    assert fingerprint(uses_functions) != before
    monkeypatch.undo()
    assert fingerprint(uses_functions) == before
    shared = [1]
    monkeypatch.setattr(textwrap.dedent, "__defaults__", (shared,))
    first = fingerprint(uses_functions)
    shared.append(2)
    assert fingerprint(uses_functions) != first


def test_the_inside_of_a_librarys_wrapper_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """``contextlib.contextmanager`` gives a function whose closure holds the one that does the work."""
    import xml.etree.ElementTree as Tree

    wrapper: Any = vars(Tree)["_get_writer"]
    (cell,) = wrapper.__closure__
    inner = cell.cell_contents

    def uses() -> object:
        return Tree._get_writer  # type: ignore[attr-defined]  # private, but there

    seen = [fingerprint(uses)]
    assert installed.token(wrapper) is not None
    for contents in (mine, other, json.dumps, 1):
        monkeypatch.setattr(cell, "cell_contents", contents)
        seen.append(fingerprint(uses))
    monkeypatch.undo()
    monkeypatch.setattr(inner, "__defaults__", (1,))
    seen.append(fingerprint(uses))
    assert len(set(seen)) == len(seen)
    monkeypatch.undo()
    assert fingerprint(uses) == seen[0]


def test_what_a_library_counts_on_its_own_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(uses_classes)
    monkeypatch.setattr(Fraction, "_made_so_far", 5, raising=False)
    assert fingerprint(uses_classes) == before
    monkeypatch.setattr(json.JSONEncoder, "___generation", 5, raising=False)
    assert fingerprint(uses_classes) == before


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    before = fingerprint(uses_functions), fingerprint(uses_classes)
    yield
    assert (fingerprint(uses_functions), fingerprint(uses_classes)) == before
