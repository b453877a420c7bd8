"""What one C++ file includes, asks for, defines and mentions, found without preprocessing it.

Conditions are not evaluated: an ``#include`` in a branch that is dead today counts,
because a macro of tomorrow can make it live. That errs on the safe side, and so does
everything here: a directive may be found where the compiler sees none, never the
other way round. What cannot be followed is a ``doubt``, and makes a compile uncacheable.
"""

from __future__ import annotations

import re

from .lexer import BLANKS, Unbounded, definition, group, words
from .marked import DIRECTIVES, QUESTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .lexer import Definition

    #: A directive that names its file: how it looks for it (see ``QUOTED``), the name.
    Include = tuple[str, str]

#: How a name is looked for: ``"x"``, ``<x>``, and either with ``include_next``.
QUOTED, ANGLED, NEXT_QUOTED, NEXT_ANGLED = '"', "<", '+"', "+<"

_HEADER = r"""<[^>\n]+>|"[^"\n]+\""""
_HASH = r"""^[^\w\n"'\#]*+\#[ \t\f\v]*+"""

_LINES = re.compile(
    rf"""{_HASH}(?:
        (?P<word>{"|".join(DIRECTIVES)})\b(?P<operand>[^\n]*)
      | define[ \t\f\v]++(?P<macro>[A-Za-z_]\w*+)(?P<body>[^\n]*)
    )""",
    re.VERBOSE | re.ASCII | re.MULTILINE,
)

#: Lines in which no macro is expanded, and of all others the word that says what they are.
_INERT = re.compile(
    rf"""{_HASH}(?:
        (?:define|undef|error|warning|ifdef|ifndef|elifdef|elifndef)\b[^\n]*
      | include(?:_next)?[ \t\f\v]*+(?:{_HEADER})
      | \w+
    )""",
    re.VERBOSE | re.ASCII | re.MULTILINE,
)

#: A header as a module. NVRTC 13 has none; one that has must not go unnoticed.
_UNITS = re.compile(rf"import[ \t\f\v]*+({_HEADER})")

_NAME = re.compile(_HEADER)


class Scan:
    """What was found in one file. All of it follows from the file's content alone."""

    __slots__ = ("computed", "definitions", "digest", "doubt", "includes", "revives_assert", "words")

    #: BLAKE3 of the content.
    digest: str
    includes: tuple[Include, ...]
    #: Directives and questions whose file a macro names: "+" for ``include_next`` or "", and the operand.
    computed: tuple[Include, ...]
    definitions: tuple[Definition, ...]
    #: The words of the file where macros are expanded: outside of quotes and of definitions, which do nothing
    #: until their macro is used.
    words: frozenset[str]
    #: Whether NDEBUG is undefined somewhere in the file.
    revives_assert: bool
    #: What in the file cannot be followed; "" when everything can.
    doubt: str


def scan(texts: Iterable[str], digest: str) -> Scan:
    """Find what there is in the readings (see ``lexer``) of content with this digest."""
    found = Scan()
    found.digest = digest
    found.doubt = ""
    includes: dict[Include, None] = {}
    computed: dict[Include, None] = {}
    definitions: dict[Definition, None] = {}
    mentioned: set[str] = set()
    found.revives_assert = False
    for text in texts:
        for match in _LINES.finditer(text):
            macro = match["macro"]
            if macro:
                definitions[definition(macro, match["body"])] = None
            else:
                _named("+" if match["word"] == "include_next" else "", match["operand"], includes, computed)
        rest = outside(text)
        mentioned.update(words(rest))
        if "__has_" in rest:
            try:
                for name, operand in asked(rest):
                    _named("+" if name.endswith("_next") else "", operand, includes, computed)
            except Unbounded as error:
                found.doubt = str(error)
        if "import" in rest:
            for match in _UNITS.finditer(rest):
                _named("", match[1], includes, computed)
        if "NDEBUG" in text and re.search(r"undef[ \t]+NDEBUG\b", text):
            found.revives_assert = True
    found.includes = tuple(includes)
    found.computed = tuple(computed)
    found.definitions = tuple(definitions)
    found.words = frozenset(mentioned)
    return found


def _named(after: str, operand: str, includes: dict[Include, None], computed: dict[Include, None]) -> None:
    operand = operand.strip(BLANKS)
    match = _NAME.match(operand)
    if match:
        includes[after + operand[0], match[0][1:-1]] = None
    elif operand:
        computed[after, operand] = None


def outside(text: str) -> str:
    """A text without what is never expanded: definitions, messages, names of files, words of directives."""
    return _INERT.sub("", text)


def asked(text: str) -> Iterator[tuple[str, str]]:
    """The questions in a text and what they ask for. Raises Unbounded where that cannot be told."""
    for name, argument in uses(text, QUESTIONS):
        if argument is None:
            # Its parenthesis comes out of a macro, or it is handed to one.
            raise Unbounded(f"{name} stands without a parenthesis")
        yield name, argument


def uses(text: str, names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Where one of ``names`` stands in a text, and what is in the parentheses behind it; None where there are none.

    What stands in those parentheses is not looked through again. ``defined(NAME)``
    is no use. Raises Unbounded when a parenthesis is not closed on its line.
    """
    pattern = re.compile(
        r""""[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+"?+|'[^'\\\n]*+(?:\\[^\n][^'\\\n]*+)*+'?+"""
        rf"|\b(?P<only>defined[ \t\f\v]*+\(?[ \t\f\v]*+)?(?P<name>{'|'.join(map(re.escape, sorted(names)))})\b"
        r"(?P<call>[ \t\f\v]*+\()?+",
        re.ASCII,
    )
    at = 0
    while match := pattern.search(text, at):
        at = match.end()
        if not match["name"] or match["only"]:
            continue
        if not match["call"]:
            yield match["name"], None
            continue
        end = group(text, at - 1)
        if end < 0:
            raise Unbounded(f"the parenthesis behind {match['name']} is not closed on its line")
        yield match["name"], text[at : end - 1]
        at = end
