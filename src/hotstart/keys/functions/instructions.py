"""The instructions of a code object, alike for every Python: one variable each, one name for each act."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

    #: Name, argument, and whether it is jumped to (said only where something is looked up with ``in``).
    Operation = tuple[str, Any, bool]

#: Opcodes that leave the stack as an analysis by adjacency sees it.
_SKIPPED = frozenset(("CACHE", "EXTENDED_ARG", "NOP", "RESUME", "PRECALL", "PUSH_NULL", "NOT_TAKEN"))
_SAME = {"LOAD_METHOD": "LOAD_ATTR", "LOAD_SMALL_INT": "LOAD_CONST", "LOAD_CONST_IMMORTAL": "LOAD_CONST"}

#: How the argument of an opcode is read: as a number, or as an index into names, constants or variables.
_NUMBER, _NAME, _CONSTANT, _VARIABLE, _VARIABLES = range(5)

_table: list[tuple[tuple[str, ...], int, int] | None] = []


def operations(code: CodeType) -> list[Operation]:
    """What ``code`` does, in order.

    Read directly where the encoding is known and a test compares it with ``dis``,
    which takes five times as long: it also renders every argument for people.
    """
    return _read(code) if sys.version_info < (3, 14) else from_dis(code)


def _read(code: CodeType) -> list[Operation]:
    if not _table:
        _table.extend(_describe())
    units = code.co_code
    names, constants = code.co_names, code.co_consts
    arguments = code.co_varnames
    variables = (*arguments, *(name for name in code.co_cellvars if name not in arguments), *code.co_freevars)
    found: list[tuple[str, Any, int, int]] = []
    extended = start = 0
    looked_up = False
    for offset in range(0, len(units), 2):
        op = units[offset]
        if not op:
            continue  # CACHE: room for the interpreter's own notes, which co_code shows empty
        argument = units[offset + 1] | extended
        entry = _table[op]
        if entry is None:
            extended = argument << 8 if op == _EXTENDED else 0
            continue
        extended = 0
        acts, kind, shift = entry
        act = acts[0]
        if kind == _NAME:
            found.append((act, names[argument >> shift], start, offset))
        elif kind == _VARIABLE:
            found.append((act, variables[argument], start, offset))
        elif kind == _CONSTANT:
            found.append((act, constants[argument], start, offset))
        elif kind == _VARIABLES:
            found.append((act, variables[argument >> 4], start, offset))
            found.append((acts[1], variables[argument & 15], offset, offset))
        else:
            looked_up = looked_up or act == "CONTAINS_OP"
            found.append((act, argument, start, offset))
        start = offset + 2
    if not looked_up:
        return [(act, argument, False) for act, argument, _, _ in found]
    from dis import findlabels

    labels = set(findlabels(units))  # type: ignore[arg-type]  # it takes the bytes, as its documentation says
    return [
        (act, argument, not labels.isdisjoint(range(start, offset + 1, 2))) for act, argument, start, offset in found
    ]


_EXTENDED = 0


def _describe() -> list[tuple[tuple[str, ...], int, int] | None]:
    """For each opcode its name or names, how its argument is read, and by how much the index is shifted."""
    global _EXTENDED
    import opcode

    _EXTENDED = opcode.opmap["EXTENDED_ARG"]
    shifts = {"LOAD_GLOBAL": 1, "LOAD_SUPER_ATTR": 2}
    if sys.version_info >= (3, 12):
        shifts["LOAD_ATTR"] = 1
    table: list[tuple[tuple[str, ...], int, int] | None] = []
    for number in range(256):
        name = opcode.opname[number]
        if name in _SKIPPED:
            table.append(None)
        elif number in opcode.hasname:
            table.append(((_SAME.get(name, name),), _NAME, shifts.get(name, 0)))
        elif number in opcode.hasconst:
            table.append(((_SAME.get(name, name),), _CONSTANT, 0))
        elif number in opcode.haslocal or number in opcode.hasfree:
            acts = _acts(name)
            table.append((acts, _VARIABLES if len(acts) == 2 else _VARIABLE, 0))
        else:
            table.append(((name,), _NUMBER, 0))
    return table


def _acts(name: str) -> tuple[str, ...]:
    """LOAD_FAST_CHECK is a LOAD_FAST; STORE_FAST_LOAD_FAST is two."""
    if not name.startswith(("LOAD_FAST", "STORE_FAST")):
        return (name,)
    return tuple(word + "_FAST" for word in name.split("_") if word in ("LOAD", "STORE"))


def from_dis(code: CodeType) -> list[Operation]:
    """The same by way of ``dis``, for Pythons whose encoding has not been looked at."""
    from dis import get_instructions

    found: list[Operation] = []
    target = False
    for instruction in get_instructions(code):
        name, argument = instruction.opname, instruction.argval
        target = target or instruction.is_jump_target
        if name in _SKIPPED:
            continue
        acts = _acts(name)
        if len(acts) == 2:
            found += [(act, each, target) for act, each in zip(acts, argument, strict=True)]
        elif name == "BINARY_OP" and instruction.argrepr == "[]":
            found.append(("BINARY_SUBSCR", None, target))
        else:
            found.append((_SAME.get(acts[0], acts[0]), argument, target))
        target = False
    return found
