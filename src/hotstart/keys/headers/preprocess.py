"""Every text that a directive can become under any definition of the macros in it.

``#include MACRO`` and ``#include CUDA_STD_HEADER(x)`` name their file through macros.
Which definition holds at that line depends on conditions that are not evaluated here,
so all of them are tried, each macro also as undefined. What comes out is a superset of
what the compiler can see, or an ``Unbounded`` that says why there is none.
"""

from __future__ import annotations

import itertools
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .scanner import Definition

    #: A token and the macros whose expansion it came from, which it is not expanded by again.
    Token = tuple[str, frozenset[str]]
    Tokens = tuple[Token, ...]
    Macros = Mapping[str, Iterable[Definition]]

#: More ways than this to read one directive: somebody computes, and a bound would be a guess.
_MOST = 4096

_LEXEMES = re.compile(
    r"""[A-Za-z_]\w* | \.?\d(?:[eEpP][+-]|[\w.])*
      | "[^"\\\n]*(?:\\.[^"\\\n]*)*" | '[^'\\\n]*(?:\\.[^'\\\n]*)*'
      | \#\# | [ \t\f\v]+ | .""",
    re.VERBOSE | re.DOTALL,
)

#: Names the compiler defines by itself, with values that are not in any file.
_PREDEFINED = re.compile(
    r"__(?:CUDA|NV|EDG|GNU|STDC|cplusplus|clang|CLANG|SIZE|LP64|CHAR|INT|LONG|SCHAR|SHRT|WCHAR|FLT|DBL|LDBL|linux|unix"
    r"|gnu|x86|amd64|aarch64|AARCH|arm|ARM|ELF|FILE__|LINE__|COUNTER__|DATE__|TIME|BASE_FILE|INCLUDE_LEVEL|VERSION|func)"
)

_RESERVED = re.compile(r"_[A-Z_]")

#: Asked of the preprocessor itself and left as they are.
_OPERATORS = frozenset({"defined", "__has_include", "__has_include_next", "__has_embed"})


class Unbounded(Exception):  # noqa: N818  (a reason on its way to UncacheableError, never seen by users)
    """The directive can become more than can be listed; the message says why."""


def expansions(text: str, macros: Macros) -> set[str]:
    """Every text ``text`` can expand to. Raises Unbounded."""
    budget = [_MOST]
    return {"".join(token for token, _ in tokens) for tokens in _expand(_tokens(text), macros, budget)}


def _tokens(text: str, hidden: frozenset[str] = frozenset()) -> Tokens:
    # White space between tokens is one space, as in what # makes of an argument.
    return tuple([(" " if token.isspace() else token, hidden) for token in _LEXEMES.findall(text)])


def _is_name(token: str) -> bool:
    return token[0].isalpha() or token[0] == "_"


def _expand(tokens: Tokens, macros: Macros, budget: list[int]) -> set[Tokens]:
    for index, (token, hidden) in enumerate(tokens):
        if not _is_name(token) or token in hidden or token in _OPERATORS:
            continue
        if _PREDEFINED.match(token):
            raise Unbounded(f"it depends on {token}, which the compiler defines")
        known = macros.get(token)
        if known is None:
            if _RESERVED.match(token):
                raise Unbounded(f"it depends on {token}, which no file defines and the compiler may")
            continue
        head = tokens[:index]
        # Undefined at this line, it stands for itself.
        readings = [((token, hidden | {token}), *tokens[index + 1 :])]
        for definition in known:
            readings += _replacements(definition, tokens, index, macros, budget)
        results = set()
        for reading in readings:
            budget[0] -= 1
            if budget[0] < 0:
                raise Unbounded(f"its macros allow more than {_MOST} readings")
            for tail in _expand(reading, macros, budget):
                results.add(head + tail)
        return results
    return {tokens}


def _replacements(
    definition: Definition, tokens: Tokens, index: int, macros: Macros, budget: list[int]
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
    bound = _bind(parameters, arguments)
    if bound is None:
        return []
    if any(token == "__VA_OPT__" for token, _ in body):
        raise Unbounded(f"{name} uses __VA_OPT__")
    choices = [list(_expand(bound[parameter], macros, budget)) for parameter in bound]
    results = []
    for choice in itertools.product(*choices):
        budget[0] -= 1
        if budget[0] < 0:
            raise Unbounded(f"its macros allow more than {_MOST} readings")
        results.append(_substitute(body, bound, dict(zip(bound, choice, strict=True)), hidden) + tokens[end:])
    return results


def _arguments(tokens: Tokens, index: int) -> tuple[list[Tokens], int] | None:
    """The arguments of a call whose parenthesis is next, and where it ends; None when there is none."""
    while index < len(tokens) and tokens[index][0] == " ":
        index += 1
    if index >= len(tokens) or tokens[index][0] != "(":
        return None
    depth = 0
    arguments: list[Tokens] = []
    start = index + 1
    for at in range(index, len(tokens)):
        token = tokens[at][0]
        depth += (token == "(") - (token == ")")
        if (token == "," and depth == 1) or depth == 0:
            arguments.append(_strip(tokens[start:at]))
            start = at + 1
        if depth == 0:
            return arguments, at + 1
    return None


def _strip(tokens: Tokens) -> Tokens:
    while tokens and tokens[0][0] == " ":
        tokens = tokens[1:]
    while tokens and tokens[-1][0] == " ":
        tokens = tokens[:-1]
    return tokens


def _bind(parameters: tuple[str, ...], arguments: list[Tokens]) -> dict[str, Tokens] | None:
    """Arguments by parameter; None when there are too few or too many, which does not compile."""
    if not parameters:
        return {} if arguments == [()] else None
    if parameters[-1].endswith("..."):
        fixed = len(parameters) - 1
        rest: Tokens = ()
        for position, argument in enumerate(arguments[fixed:]):
            rest += ((",", frozenset()), *argument) if position else argument
        arguments = [*arguments[:fixed], rest]
        parameters = (*parameters[:-1], parameters[-1].removesuffix("...").rstrip() or "__VA_ARGS__")
    return dict(zip(parameters, arguments, strict=True)) if len(parameters) == len(arguments) else None


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
            spelled = "".join(part for part, _ in raw[following])
            result.append((f'"{spelled}"', hidden))
            index = after
        elif token[0] in raw:
            previous = next((part for part, _ in reversed(result) if part != " "), "")
            joined = following == "##" or previous == "##"
            result += raw[token[0]] if joined else full[token[0]]
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
        elif paste and token == " ":
            continue
        elif paste and result:
            left, also = result.pop()
            result.append((left + token, hidden & also))
            paste = False
        else:
            result.append((token, hidden))
            paste = False
    return tuple(result)
