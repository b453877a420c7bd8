"""The text of a C++ file in logical lines, as the compiler takes it apart before it reads any directive.

``readings`` joins spliced lines, makes each comment a space, takes strings, raw strings
and the names of included files for what they are, and writes digraphs as what they mean.
Everybody who looks at source text looks at this one form of it.

How a file reads depends on the standard: C++03 has no raw strings, C++11 no grouped
digits, C++14 was the last with trigraphs. A lone carriage return ends a line for some. For
the few files where this makes a difference there are several readings, and whoever uses
them takes what is found in any. A quote that is not closed on its line reaches to the end
of it, which is what NVRTC 13.4 does in text that it skips; elsewhere it is an error.

What NVRTC does was found by trying it; tests/keys/test_scanner.py tries it again.
"""

from __future__ import annotations

import re

from .marked import DIRECTIVES

TYPE_CHECKING = False
if TYPE_CHECKING:
    #: A definition: name, parameters or None for an object-like macro, replacement text.
    Definition = tuple[str, tuple[str, ...] | None, str]

#: What is left of a raw string: nothing that could stand in a directive.
RAW = "\x01"

#: What is blank within a line; ``str.strip`` alone would take bytes above 127 with it.
BLANKS = " \t\f\v"

# Every quantifier below takes what it can and never gives it back, and what is not closed reaches to
# the end of the line or the file: so each character is looked at once, whatever the text.
# Patterns begin with a set of characters: only then does ``re`` skip to the next candidate
# instead of trying every place, which is ten times slower.

_COMMENT = r"\*[^*]*+(?:\*(?!/)[^*]*+)*+(?:\*/|\Z)"
_STRING = r'[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+(?:"|\\?(?=\n|\Z))'
_CHARACTER = r"[^'\\\n]*+(?:\\[^\n][^'\\\n]*+)*+(?:'|\\?(?=\n|\Z))"
_RAW = r"""(?:(?<!\wR)|(?<=\b[uUL]R)|(?<=\bu8R))"(?P<end>[^ ()\\\t\v\f\n"]{0,16})\((?s:.*?)(?:\)(?P=end)"|\Z)"""
#: A comment that is closed before the next star: enough for those between the words of a directive.
_GAP = r"(?:[ \t\f\v]|/\*[^*\n]*+\*/)*+"
_NAMED = rf"""(?P<word>{"|".join(DIRECTIVES)}){_GAP}(?P<name><[^>\n]*+>|"[^"\n]*+")"""
_GROUPED = r"(?<!\w\d)(?<!'\d)[\w.]*+(?:'\w[\w.]*+)++"
_ASKED = rf"(?<!\w_)(?P<question>_has_(?:include|embed)(?:_next)?){_GAP}\({_GAP}(?P<asked><[^>\n]*+>)"


def _lexemes(*, raw: bool, grouped: bool, asked: bool) -> re.Pattern[str]:
    starts = "\"'/#%" + "R" * raw + "0-9" * grouped + "_" * asked
    ways = [
        rf"(?<=/)(?:/[^\n]*+|{_COMMENT})",
        rf'(?<="){_STRING}',
        rf"(?<='){_CHARACTER}",
        rf"(?:(?<=#)|(?<=%):){_GAP}{_NAMED}",
        "(?<=%):",
    ]
    ways += [rf"(?<=R){_RAW}"] * raw + [rf"(?<=[0-9]){_GROUPED}"] * grouped + [rf"(?<=_){_ASKED}"] * asked
    return re.compile(f"[{starts}](?:{'|'.join(ways)})", re.ASCII)


_compiled: dict[tuple[bool, bool, bool], re.Pattern[str]] = {}

_TRIGRAPHS = {
    "??=": "#",
    "??/": "\\",
    "??'": "^",
    "??(": "[",
    "??)": "]",
    "??!": "|",
    "??<": "{",
    "??>": "}",
    "??-": "~",
}
_ODD_RAW = re.compile(r"""R"(?!([^ ()\\\t\v\f\n"]{0,16})\([^"'/\\\n]*+\)\1")""")
_AFTER_GROUPED = re.compile(r"[0-9]'([^\n]*)")
_WORDS = re.compile(r"\w+", re.ASCII)
_LITERALS = re.compile(rf'"{_STRING}|\'{_CHARACTER}')
_PARENTHESES = re.compile(rf"""[()\n"'](?:(?<="){_STRING}|(?<='){_CHARACTER})?+""")
_PARAMETERS = re.compile(r"\(([^()]*)\)")


class Unbounded(Exception):  # noqa: N818  (a reason on its way to UncacheableError, never seen by users)
    """The text can mean more than can be listed; the message says why."""


def readings(data: bytes) -> list[str]:
    """Every way in which the content of a file can read. One, but for very few files.

    Bytes above 127 become the characters of the same number; ``search`` turns names back.
    """
    text = data.decode("latin-1").removeprefix("\xef\xbb\xbf")
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    texts = [text]
    if "\r" in text:
        # A line to some compilers and a space to others.
        texts = [text.replace("\r", "\n"), text.replace("\r", " ")]
    if "??" in text and any(sign in text for sign in _TRIGRAPHS):
        texts += [_without_trigraphs(text) for text in texts]
    found: dict[str, None] = {}
    for text in texts:
        splices = "\\\n" in text
        joined = text.replace("\\\n", "") if splices else text
        ways = [(True, True)]
        odd = 'R"' in joined and _ODD_RAW.search(joined)
        if odd or ("'" in joined and any('"' in rest or "/" in rest for rest in _AFTER_GROUPED.findall(joined))):
            ways += [(True, False), (False, False)]
        for raw, grouped in ways:
            found[_clean(joined, raw, grouped)] = None
        if odd and splices:
            # In a raw string a splice is none, so that it can end elsewhere than it seems to.
            found[_clean(text, True, True).replace("\\\n", "")] = None
    return list(found)


def _without_trigraphs(text: str) -> str:
    for sign, meant in _TRIGRAPHS.items():
        text = text.replace(sign, meant)
    return text


def _clean(text: str, raw: bool, grouped: bool) -> str:
    """The text with comments gone, digraphs as they are meant, and nothing inside of a raw string."""
    way = raw, grouped and "'" in text, "__has_" in text
    pattern = _compiled.get(way)
    if pattern is None:
        pattern = _compiled[way] = _lexemes(raw=way[0], grouped=way[1], asked=way[2])
    return pattern.sub(_tidy, text)


def _tidy(match: re.Match[str]) -> str:
    token = match[0]
    first = token[0]
    if first == "/":
        return " "
    if first in "\"'":
        return token
    if first in "#%":
        return f"#{match['word'] or ''}{match['name'] or ''}"
    if first == "R":
        return RAW
    return token.replace("'", "") if first != "_" else f"_{match['question']}({match['asked']}"


def words(text: str) -> list[str]:
    """The identifiers and numbers of a text, outside of quotes."""
    return _WORDS.findall(_LITERALS.sub(" ", text) if '"' in text or "'" in text else text)


def group(text: str, start: int) -> int:
    """Where the parenthesis that opens at ``start`` is closed: the place behind it; -1 when that is not on its line."""
    depth = 0
    for match in _PARENTHESES.finditer(text, start):
        sign = match[0]
        if sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
            if not depth:
                return match.end()
        elif sign == "\n":
            break
    return -1


def definition(name: str, rest: str) -> Definition:
    """A macro from what follows its name in a ``#define``."""
    if rest.startswith("("):
        inside = _PARAMETERS.match(rest)
        if inside:
            names = inside[1].strip(BLANKS)
            parameters = tuple([part.strip(BLANKS) for part in names.split(",")]) if names else ()
            return name, parameters, rest[inside.end() :].strip(BLANKS)
    return name, None, rest.strip(BLANKS)
