"""Instructions are read as ``dis`` reads them, and references are found in them."""

from __future__ import annotations

import argparse
import ast
import asyncio.base_events
import dataclasses
import enum
import inspect
import random
import tarfile
import typing
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy.lib._npyio_impl
import pytest

from hotstart.keys.functions.bytecode import facts_of
from hotstart.keys.functions.instructions import from_dis, operations

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES = [
    argparse,
    ast,
    asyncio.base_events,
    dataclasses,
    enum,
    inspect,
    random,
    tarfile,
    typing,
    numpy.lib._npyio_impl,
]

#: Acts whose argument the analysis reads.
READ = ("LOAD_", "STORE_", "DELETE_", "IMPORT_", "CALL", "COPY", "MAKE_CELL")


def codes(module: ModuleType) -> Iterator[CodeType]:
    def within(code: CodeType) -> Iterator[CodeType]:
        yield code
        for item in code.co_consts:
            if isinstance(item, CodeType):
                yield from within(item)

    for value in vars(module).values():
        functions = vars(value).values() if isinstance(value, type) else (value,)
        for function in functions:
            if isinstance(function, FunctionType):
                yield from within(function.__code__)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_instructions_are_what_dis_says(module: ModuleType) -> None:
    def comparable(found: list[tuple[str, Any, bool]]) -> list[tuple[Any, ...]]:
        return [(act, argument if act.startswith(READ) and act not in unread else None) for act, argument, _ in found]

    # dis gives these no argument, or one rendered for people.
    unread = {"LOAD_BUILD_CLASS", "LOAD_ASSERTION_ERROR", "LOAD_LOCALS", "STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"}
    unread |= {"CALL_INTRINSIC_1", "CALL_INTRINSIC_2", "CALL_FUNCTION_EX"}
    seen = 0
    for code in codes(module):
        assert comparable(operations(code)) == comparable(from_dis(code))
        targets = [jumped for _, _, jumped in from_dis(code)]
        if any(act == "CONTAINS_OP" for act, _, _ in operations(code)):
            jumped_to = [jumped for _, _, jumped in operations(code)]
            # From 3.13 on dis counts the beginnings of exception handlers, which nothing falls into.
            assert jumped_to == targets or code.co_exceptiontable
            assert not any(ours and not theirs for ours, theirs in zip(jumped_to, targets, strict=True))
        seen += 1
    assert seen > 10


def test_an_index_that_needs_three_bytes_is_read() -> None:
    lines = [f"    v{at} = g{at}.a{at}" for at in range(70_000)]
    namespace: dict[str, Any] = {}
    exec("\n".join(["def f():", *lines]), namespace)
    refs = {label for _, _, label in facts_of(namespace["f"].__code__).refs}
    assert refs == {f"g{at}.a{at}" for at in range(70_000)}


def references(text: str) -> set[str]:
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    return {label for _, _, label in facts_of(namespace["f"].__code__).refs}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a.b.c(d.e)", {"a.b.c", "d.e"}),
        ("a[b.c].d", {"a", "b.c"}),
        ("a().b", {"a"}),
        ("[a.x for y in b.z if c.w]", {"a.x", "b.z", "c.w"}),
        ("lambda: a.b", {"a.b"}),
        ("a.b.c = d", {"a.b", "d"}),
        ("a.b = 1", {"a.b"}),
        ("a.b += 1", {"a.b"}),
        ("import a.b.c; a.b.c.d()", {"a.b.c.d"}),
        ("import a.b.c as x; x.d()", {"a.b.c.d"}),
        ("from a.b import c as x; x.d()", {"a.b.c.d"}),
        ("from . import x; x.d()", {"..x.d"}),
        ("import a; g(a)", {"a", "g"}),
        ("import a; a = g(); a.b", {"a", "g"}),
        ("import a; (lambda: a.b)(); a.c", {"a.b", "a.c"}),
        ("global a; import a; a.b", {"a", "a.b"}),
        ("import a", {"a"}),
        ("del a.b", {"a.b"}),
        ("a.b.c if d else e.f", {"a.b.c", "d", "e.f"}),
        ("f'{a.b!r:{c.d}}'", {"a.b", "c.d"}),
    ],
)
def test_names_are_followed_as_far_as_they_are_read(body: str, expected: set[str]) -> None:
    assert references("def f():\n  " + "\n  ".join(body.split("; "))) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return self.a + self.b.c", ("a", "b")),
        ("self.a = self.b", ("a", "b")),
        ("self.a += 1", ("a",)),
        ("return [self.a for x in y]", ("a",)),
        ("return (lambda: self.a)()", ("a",)),
        ("return self.a(self.b)", ("a", "b")),
        ("return 1", ()),
        ("return self", None),
        ("return g(self)", None),
        ("return self + 1", None),
        ("x = self; return x.a", None),
        ("return (lambda: self)()", None),
        ("return super().a", None),
        ("return locals()", None),
        ("self = x", None),
        ("del self", None),
        ("return self[0]", None),
        ("return (self or x).a", None),
        ("with self as x: pass", None),
        ("async def g(): await self", None),
        ("class C: x = self.a", ("a",)),
    ],
)
def test_what_is_read_of_the_first_parameter(body: str, expected: tuple[str, ...] | None) -> None:
    namespace: dict[str, Any] = {}
    exec("def f(self, x=None, y=()):\n  " + "\n  ".join(body.split("; ")), namespace)
    found = facts_of(namespace["f"].__code__).self_reads
    assert found == expected or found is None
    if expected is None:
        assert found is None
