"""What one C++ file includes, defines and mentions, found without preprocessing it.

Conditions are not evaluated: an ``#include`` in a branch that is dead today counts,
because a macro of tomorrow can make it live. That errs on the safe side, and so does
everything here: a directive may be found where the compiler sees none, never the
other way round.

Comments are taken out first, as the compiler would. Where that cannot be done with
certainty (an apostrophe in skipped text, a raw string over several lines) the file is
read as it stands, comments included: out of step with the compiler for one character,
a scanner could take a live directive for a comment.

What NVRTC 13.4 does was found by trying it; tests/keys/test_scanner.py tries it again.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    #: A directive that names its file: how it looks for it (see ``QUOTED``), the name.
    Include = tuple[str, str]
    #: A definition: name, parameters or None for an object-like macro, replacement text.
    Definition = tuple[str, tuple[str, ...] | None, str]

#: How a name is looked for: ``"x"``, ``<x>``, and either with ``include_next``.
QUOTED, ANGLED, NEXT_QUOTED, NEXT_ANGLED = '"', "<", '+"', "+<"

# Patterns begin with a set of characters or a word: only then does ``re`` skip to the next
# candidate instead of trying every place, which is ten times slower.

_COMMENT = r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/"
_SPACE = rf"(?:[ \t\f\v]|{_COMMENT})*"
_HEADER = r"""(?:<[^>\n]+>|"[^"\n]+")"""
_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_CHARACTER = r"'[^'\\\n]*(?:\\.[^'\\\n]*)*'"
_WORD = r"(?P<word>include_next|include|import|embed)"

#: A string, a character or a comment, whole.
_TOKENS = re.compile(
    rf"""["'/](?:
        (?<=") {_STRING[1:]}
      | (?<=') (?:(?<!\w')|(?<=\bu8')|(?<=\b[uUL]')) {_CHARACTER[1:]}
      | (?<=/) (?:/[^\n]*|{_COMMENT[1:]})
    )""",
    re.VERBOSE,
)

#: Digits in groups, as in 1'000: the apostrophes that are none of the above.
_GROUPED = re.compile(r"(?<!\w)\d[\w.]*(?:'[\w.]+)+")

#: A raw string that is not one string to those who do not know raw strings, too.
_RAW = re.compile(r"""R"(?!([^ ()\\\t\v\f\n"]{0,16})\([^"\\\n]*\)\1")""")

#: A file name in angle brackets with what looks like a quote or a comment in it.
_ODD_NAME = re.compile(rf"""include(?:_next)?{_SPACE}\(?{_SPACE}<[^>\n]*(?:["']|//|/\*)""")

_LITERALS = re.compile(f"{_STRING}|{_CHARACTER}")

#: A directive. What follows a name is only looked at, not taken: in text that may be a comment,
#: another directive can stand behind it on the same line.
_DIRECTIVES = re.compile(
    rf"""[\#%]:?{_SPACE}(?:
        {_WORD}\b{_SPACE}(?:(?P<name>{_HEADER})|(?=(?P<operand>[^\n]*)))
      | define\b{_SPACE}(?P<macro>\w+)(?=(?P<body>[^\n]*))
    )""",
    re.VERBOSE,
)

_DEFINES = re.compile(rf"[ \t\f\v]*[\#%]:?{_SPACE}define\b")
_BODIES = re.compile(rf"[\#%]:?{_SPACE}define\b[^\n]*")

#: A question whether a file is there: NVRTC answers it anywhere, not only after #if.
_QUESTIONS = re.compile(
    rf"__has_(?:include|embed)(?P<next>_next)?{_SPACE}\({_SPACE}(?:(?P<name>{_HEADER})|(?=(?P<operand>[^\n]*)))"
)

#: A macro that asks so for somebody else, also by putting the question together.
ASKS = re.compile(r"__has_(?:include|embed|[ \t]*\#\#)")

#: A header as a module. NVRTC 13 has none; one that has must not go unnoticed.
_UNITS = re.compile(rf"import{_SPACE}(?P<name>{_HEADER})")

_PARAMETERS = re.compile(r"\(([^()]*)\)")

#: What is blank in a source file; ``str.strip`` alone would take bytes above 127 with it.
_BLANKS = " \t\f\v"

#: Names of the compiler that put the time of the compile into its output.
CLOCKS = ("__DATE__", "__TIME__", "__TIMESTAMP__")

#: Names that give the path of the file they stand in. ``assert`` is NVRTC's own and says where it failed.
PLACES = ("__FILE__", "assert")

#: Names that can give the path of another file: that of whoever calls, or the main one.
CALLERS = ("__builtin_FILE", "__builtin_source_location", "source_location", "__BASE_FILE__")

_MARKED = (*CLOCKS, *PLACES, *CALLERS)


class Scan:
    """What was found in one file. All of it follows from the file's content alone."""

    __slots__ = ("computed", "definitions", "digest", "includes", "mentions", "revives_assert")

    #: BLAKE3 of the content.
    digest: str
    includes: tuple[Include, ...]
    #: Directives whose file a macro names: "+" for ``include_next`` or "", and the operand.
    computed: tuple[Include, ...]
    definitions: tuple[Definition, ...]
    #: Those of ``CLOCKS``, ``PLACES`` and ``CALLERS`` that stand in the file outside of definitions.
    mentions: frozenset[str]
    #: Whether NDEBUG is undefined somewhere in the file.
    revives_assert: bool


def prepare(data: bytes) -> tuple[str, bool]:
    """The text of a file with lines joined and comments gone; whether that was certain.

    Where it was not, comments are still in. Bytes above 127 become the characters
    of the same number; ``keys.headers`` turns names back.
    """
    text = data.decode("latin-1")
    if "\r" in text:
        # A lone carriage return ends a line for some and is a space for others: as a line it hides nothing.
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\\\n" in text:
        text = text.replace("\\\n", "")
    kept: list[str] = []

    def tidy(match: re.Match[str]) -> str:
        token = match[0]
        if token[0] == "/":
            return " "
        kept.append(token)
        return token

    clean = _TOKENS.sub(tidy, text)
    # Whatever quote or comment is left outside of a whole token, the compiler may see another way.
    whole = "".join(kept)
    certain = (
        clean.count('"') == whole.count('"')
        and clean.count("/*") == whole.count("/*")
        and (clean.count("'") == whole.count("'") or _GROUPED.sub("", clean).count("'") == whole.count("'"))
        and not _RAW.search(clean)
        and not _ODD_NAME.search(text)
        and "??/" not in text
        and "??'" not in text
    )
    return (clean, True) if certain else (text, False)


def scan(text: str, certain: bool, digest: str) -> Scan:
    """Find what there is in the text that ``prepare`` made of content with this digest."""
    found = Scan()
    found.digest = digest
    includes: dict[Include, None] = {}
    computed: dict[Include, None] = {}
    definitions: dict[Definition, None] = {}
    for version in _spellings(text):
        _directives(version, certain, includes, computed, definitions)
    found.includes = tuple(includes)
    found.computed = tuple(computed)
    found.definitions = tuple(definitions)
    found.mentions = mentioned(_MARKED, text, certain)
    found.revives_assert = "NDEBUG" in text and re.search(r"undef[ \t]+NDEBUG\b", text) is not None
    return found


def mentioned(names: Iterable[str], text: str, certain: bool) -> frozenset[str]:
    """Which of ``names`` stand in a text, but for those in quotes and in the definitions of macros.

    No macro is expanded in quotes. A definition does nothing until its macro is
    used; whoever asks has to ask for that macro as well.
    """
    maybe = [name for name in names if name in text and _word(name).search(text)]
    if maybe and certain:
        text = outside(_LITERALS.sub('""', text))
        maybe = [name for name in maybe if _word(name).search(text)]
    return frozenset(maybe)


def outside(text: str) -> str:
    """A text without the definitions in it."""
    return _BODIES.sub("", text)


def _word(name: str) -> re.Pattern[str]:
    # The boundary before it is asked for after it: a pattern that begins with letters is found faster.
    return re.compile(rf"{name}(?<!\w{name})\b")


def _spellings(text: str) -> list[str]:
    """The text, and how it reads to a compiler that still knows trigraphs (C++14 and before)."""
    if "??=" not in text and "??/" not in text:
        return [text]
    return [text, text.replace("??/\n", "").replace("??=", "#")]


def _directives(
    text: str,
    certain: bool,
    includes: dict[Include, None],
    computed: dict[Include, None],
    definitions: dict[Definition, None],
) -> None:
    for match in _DIRECTIVES.finditer(text):
        macro = match["macro"]
        if macro:
            definitions[definition(macro, match["body"])] = None
        else:
            after = "+" if match["word"] == "include_next" else ""
            _named(after, match["name"], match["operand"], includes, computed)
    if "__has_" in text:
        for match in _QUESTIONS.finditer(text):
            operand = match["operand"]
            if operand and certain and _DEFINES.match(text, text.rfind("\n", 0, match.start()) + 1):
                # In a definition it asks for whoever uses the macro, and is found there (``ASKS``).
                continue
            _named("+" if match["next"] else "", match["name"], operand and _argument(operand), includes, computed)
    if "import" in text:
        for match in _UNITS.finditer(text):
            _named("", match["name"], None, includes, computed)


def _named(
    after: str, name: str | None, operand: str | None, includes: dict[Include, None], computed: dict[Include, None]
) -> None:
    if name:
        includes[after + name[0], name[1:-1]] = None
    elif operand and operand.strip(_BLANKS):
        computed[after, operand.strip(_BLANKS)] = None


def _argument(text: str) -> str:
    """The text up to the parenthesis that closes the one it came after."""
    depth = 1
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return text[:index].strip(_BLANKS)
    return text


def definition(name: str, rest: str) -> Definition:
    """A macro from what follows its name, in a ``#define`` or a ``-D`` with its first ``=`` made a space."""
    if rest.startswith("("):
        inside = _PARAMETERS.match(rest)
        if inside:
            names = inside[1].strip(_BLANKS)
            parameters = tuple([part.strip(_BLANKS) for part in names.split(",")]) if names else ()
            return name, parameters, rest[inside.end() :].strip(_BLANKS)
    return name, None, rest.strip(_BLANKS)
