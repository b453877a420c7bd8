"""Every text that a directive can become under any definition of the macros in it.

``#include MACRO`` and ``#include CUDA_STD_HEADER(x)`` name their file through macros.
Which definition holds at that line depends on conditions that are not evaluated here,
so all of them are tried, each macro also as undefined. What comes out is a superset of
what the compiler can see, or an ``Unbounded`` that says why there is none.
"""

from __future__ import annotations

import itertools
import re

from .lexer import Unbounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .lexer import Definition

    #: A token and the macros whose expansion it came from, which it is not expanded by again.
    Token = tuple[str, frozenset[str]]
    Tokens = tuple[Token, ...]
    Macros = Mapping[str, Iterable[Definition]]

__all__ = ["Budget", "Unbounded", "expansions", "file_names"]

#: More ways than this to read one directive: somebody computes, and a bound would be a guess.
_MOST = 4096

#: Tokens in all readings of all directives of a closure together (CUTLASS has some thousands), and how deep calls may
#: stand in arguments of calls.
_MOST_TOKENS = 500_000
_DEEPEST = 64

#: Spaces in the name of a file that may or may not be in it.
_MOST_SPACES = 4

_LEXEMES = re.compile(
    r"""\.?[0-9](?:[eEpP][+-]|[\w.$\x80-\xff])*+ | [\w$\x80-\xff]++
      | "[^"\\\n]*+(?:\\.[^"\\\n]*+)*+" | '[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'
      | \#\# | [ \t\f\v]++ | .""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)

#: What a directive can have in it that is read here as the compiler reads it.
_PLAIN = re.compile(
    r"""\w+|[\x80-\xff]+|\.[\w.]+|\d[\w.+-]*|"[^"\\]*"|'[^'\\]*'|[ !%&()*+,./:;<=>?\[\]^{|}~-]""", re.ASCII
)

#: Names the compiler defines by itself, with values that are not in any file.
_PREDEFINED = re.compile(
    r"__(?:CUDA|NV|EDG|GNU|STDC|cplusplus|clang|CLANG|SIZE|LP64|CHAR|INT|LONG|SCHAR|SHRT|WCHAR|FLT|DBL|LDBL|linux|unix"
    r"|gnu|x86|amd64|aarch64|AARCH|arm|ARM|ELF|FILE__|LINE__|COUNTER__|DATE__|TIME|BASE_FILE|INCLUDE_LEVEL|VERSION|func)"
)

_RESERVED = re.compile(r"_[A-Z_]")

#: Asked of the preprocessor itself and left as they are.
_OPERATORS = frozenset({"defined", "__has_include", "__has_include_next", "__has_embed"})


class Budget:
    """How much work the directives of one closure may make."""

    __slots__ = ("readings", "tokens", "unknown")

    def __init__(self) -> None:
        self.tokens = _MOST_TOKENS
        self.begin(unknown=False)

    def begin(self, *, unknown: bool) -> None:
        """Another directive; ``unknown`` lets names through that only the compiler knows."""
        self.readings = _MOST
        self.unknown = unknown

    def spend(self, tokens: int) -> None:
        self.readings -= 1
        self.tokens -= tokens
        if self.readings < 0 or self.tokens < 0:
            raise Unbounded(f"its macros allow more than {_MOST} readings, or too long ones")


def expansions(text: str, macros: Macros, budget: Budget, *, unknown: bool = False) -> set[str]:
    """Every text ``text`` can expand to. Raises Unbounded.

    With ``unknown``, names that the compiler defines or may define stand for
    themselves: for those who look for something else in the text.
    """
    budget.begin(unknown=unknown)
    return {"".join([token for token, _ in tokens]) for tokens in _expand(_tokens(text), macros, budget, 0)}


def file_names(operand: str, macros: Macros, budget: Budget) -> set[tuple[str, str]]:
    """Every file that ``#include operand`` can mean: how it is looked for, and its name.

    None at all only for a name that nothing defines: wherever that is live, it does
    not compile. Raises Unbounded when an expansion is neither that nor a file's name.
    """
    if operand == "__FILE__":
        # The file itself, which is here already.
        return set()
    found: set[tuple[str, str]] = set()
    for text in expansions(operand, macros, budget):
        text = text.strip(" ")
        close = text.find('"' if text[:1] == '"' else ">", 1)
        if text[:1] == '"' and close > 0:
            found.add(('"', text[1:close]))
        elif text[:1] == "<" and close > 0:
            found.update([("<", name) for name in _spaced(text[1:close])])
        elif text and not _is_name(text):
            # What begins with a name was not expanded, and does not compile.
            raise Unbounded(f"it can become {text[:60]}, which names no file")
    found = {(kind, name) for kind, name in found if name}
    first = re.match(r"[A-Za-z_]\w*", operand, re.ASCII)
    if not found and (first is None or first[0] in macros):
        raise Unbounded("its macros never become the name of a file")
    return found


def _spaced(name: str) -> set[str]:
    """Spaces come and go between tokens; each way to keep them is a name of its own."""
    pieces = name.split(" ")
    if len(pieces) - 1 > _MOST_SPACES:
        raise Unbounded("there are too many spaces in its name")
    ways = itertools.product(("", " "), repeat=len(pieces) - 1)
    return {"".join([piece + gap for piece, gap in zip(pieces, (*way, ""), strict=True)]) for way in ways}


def _tokens(text: str, hidden: frozenset[str] = frozenset()) -> Tokens:
    # White space between tokens is one space, as in what # makes of an argument.
    return tuple([(" " if token[0] in " \t\f\v" else token, hidden) for token in _LEXEMES.findall(text)])


def _is_name(token: str) -> bool:
    first = token[:1]
    return first == "_" or (first.isascii() and first.isalpha())


def _expand(tokens: Tokens, macros: Macros, budget: Budget, depth: int) -> set[Tokens]:
    if depth > _DEEPEST:
        raise Unbounded(f"calls stand in calls more than {_DEEPEST} deep")
    results: set[Tokens] = set()
    work: list[tuple[Tokens, Tokens]] = [((), tokens)]
    while work:
        head, rest = work.pop()
        for index, (token, hidden) in enumerate(rest):
            if not _PLAIN.fullmatch(token) and not budget.unknown:
                raise Unbounded(f"there is {token!r} in it")
            if not _is_name(token) or token in hidden or token in _OPERATORS:
                continue
            if _PREDEFINED.match(token) and not budget.unknown:
                raise Unbounded(f"it depends on {token}, which the compiler defines")
            known = macros.get(token)
            if known is None:
                if _RESERVED.match(token) and not budget.unknown:
                    raise Unbounded(f"it depends on {token}, which no file defines and the compiler may")
                continue
            before = head + rest[:index]
            # Undefined at this line, it stands for itself.
            readings = [((token, hidden | {token}), *rest[index + 1 :])]
            for definition in known:
                readings += _replacements(definition, rest, index, macros, budget, depth)
            for reading in readings:
                budget.spend(len(before) + len(reading))
                work.append((before, reading))
            break
        else:
            results.add(head + rest)
    return results


def _replacements(
    definition: Definition, tokens: Tokens, index: int, macros: Macros, budget: Budget, depth: int
) -> list[Tokens]:
    """The tokens from ``index`` on with the macro there replaced, in every way its arguments allow."""
    name, parameters, text = definition
    hidden = tokens[index][1] | {name}
    body = _tokens(text, hidden)
    if parameters is None:
        return [_pasted(body) + tokens[index + 1 :]]
    call = _arguments(tokens, index + 1)
    if call is None:
        # Without parentheses the name of a function-like macro is only a name.
        return []
    arguments, end = call
    bound = _bind(parameters, arguments, tokens)
    if bound is None:
        return []
    if any(token == "__VA_OPT__" for token, _ in body):
        raise Unbounded(f"{name} uses __VA_OPT__")
    choices = [list(_expand(bound[parameter], macros, budget, depth + 1)) for parameter in bound]
    results = []
    for choice in itertools.product(*choices):
        made = _substitute(body, bound, dict(zip(bound, choice, strict=True)), hidden) + tokens[end:]
        budget.spend(len(made))
        results.append(made)
    return results


def _arguments(tokens: Tokens, index: int) -> tuple[list[tuple[int, int]], int] | None:
    """Where each argument of a call begins and ends whose parenthesis is next, and where it ends; None when none is."""
    while index < len(tokens) and tokens[index][0] == " ":
        index += 1
    if index >= len(tokens) or tokens[index][0] != "(":
        return None
    depth = 0
    arguments = []
    start = index + 1
    for at in range(index, len(tokens)):
        token = tokens[at][0]
        depth += (token == "(") - (token == ")")
        if (token == "," and depth == 1) or depth == 0:
            arguments.append((start, at))
            start = at + 1
        if depth == 0:
            return arguments, at + 1
    return None


def _strip(tokens: Tokens) -> Tokens:
    first, last = 0, len(tokens)
    while first < last and tokens[first][0] == " ":
        first += 1
    while first < last and tokens[last - 1][0] == " ":
        last -= 1
    return tokens[first:last]


def _bind(parameters: tuple[str, ...], arguments: list[tuple[int, int]], tokens: Tokens) -> dict[str, Tokens] | None:
    """Arguments by parameter; None when there are too few or too many, which does not compile."""
    if not parameters:
        return {} if len(arguments) == 1 and not _strip(tokens[slice(*arguments[0])]) else None
    if parameters[-1].endswith("..."):
        fixed = len(parameters) - 1
        # Everything from there on, with the commas and spaces in it.
        rest = (arguments[fixed][0], arguments[-1][1]) if len(arguments) > fixed else (0, 0)
        arguments = [*arguments[:fixed], rest]
        parameters = (*parameters[:-1], parameters[-1].removesuffix("...").rstrip() or "__VA_ARGS__")
    if len(parameters) != len(arguments):
        return None
    return {name: _strip(tokens[start:end]) for name, (start, end) in zip(parameters, arguments, strict=True)}


def _substitute(body: Tokens, raw: dict[str, Tokens], full: dict[str, Tokens], hidden: frozenset[str]) -> Tokens:
    """A macro's body with its arguments in: as written next to # and ##, expanded elsewhere."""
    result: list[Token] = []
    index = 0
    while index < len(body):
        token = body[index]
        after = index + 1
        while after < len(body) and body[after][0] == " ":
            after += 1
        following = body[after][0] if after < len(body) else ""
        if token[0] == "#" and following in raw:
            spelled = "".join([part for part, _ in raw[following]])
            if '"' in spelled or "\\" in spelled:
                raise Unbounded("it makes a string of a string")
            result.append((f'"{spelled}"', hidden))
            index = after
        elif token[0] in raw:
            previous = next((part for part, _ in reversed(result) if part != " "), "")
            if following == "##" or previous == "##":
                # Nothing at all is something to be joined with, too.
                result += raw[token[0]] or (("", hidden),)
                if any(part == "##" for part, _ in raw[token[0]]):
                    raise Unbounded("it joins what is written as an argument")
            else:
                result += full[token[0]]
        else:
            result.append(token)
        index += 1
    return _pasted(tuple(result))


def _pasted(tokens: Tokens) -> Tokens:
    """The tokens with every ## gone and what stood beside it joined."""
    if all(token != "##" for token, _ in tokens):
        return tokens
    result: list[Token] = []
    paste = False
    for token, hidden in tokens:
        if token == "##":
            paste = True
            while result and result[-1][0] == " ":
                result.pop()
            if result and result[-1][0] == ",":
                raise Unbounded("a comma is joined, which may make it disappear")
        elif paste and token == " ":
            continue
        elif paste and result:
            left, also = result.pop()
            result.append((left + token, hidden & also))
            paste = False
        else:
            result.append((token, hidden))
            paste = False
    return tuple([token for token in result if token[0]])
