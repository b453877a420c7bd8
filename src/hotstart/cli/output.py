"""Tables, colours and JSON. Colours only on a terminal, and never with NO_COLOR."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34"}

#: Width that is assumed where nobody can say.
_WIDTH = 100


def coloured(stream: TextIO | None) -> bool:
    """Whether to colour what is written there."""
    if stream is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:
        return False  # closed


def paint(text: str, *styles: str, stream: TextIO | None = None) -> str:
    """``text`` in these styles where the stream (stdout unless given) shows them."""
    if not styles or not coloured(stream if stream is not None else sys.stdout):
        return text
    return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"


def width(stream: TextIO | None = None) -> int:
    """Columns of the terminal; 0 where the stream is none, and nothing should be cut."""
    stream = stream if stream is not None else sys.stdout
    try:
        if not stream.isatty():
            return 0
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH
    except (OSError, ValueError, AttributeError):
        return _WIDTH


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: str = "", total: bool = False) -> str:
    """Aligned columns under bold heads. ``right`` has a ">" for each column to align right, else anything.

    With ``total`` the last row is set apart. The last column is cut to the terminal.
    """
    body = [[_printable(str(cell)) for cell in row] for row in rows]
    widths = [max(len(cells[n]) for cells in [list(heads), *body]) for n in range(len(heads))]
    room = width()
    if room:
        rest = room - sum(widths[:-1]) - 2 * (len(widths) - 1)
        widths[-1] = min(widths[-1], max(rest, 12))
    lines = [paint(_line(heads, widths, right), "bold")]
    for number, row in enumerate(body):
        if total and number == len(body) - 1:
            lines.append(paint("  ".join("─" * size for size in widths), "dim"))
        lines.append(_line(row, widths, right))
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: list[int], right: str) -> str:
    from ..insight.words import shorten

    parts = []
    for number, (cell, size) in enumerate(zip(cells, widths, strict=True)):
        cell = shorten(cell, size)
        parts.append(f"{cell:>{size}}" if right[number : number + 1] == ">" else f"{cell:<{size}}")
    return "  ".join(parts).rstrip()


def _printable(text: str) -> str:
    """Without what would move the cursor or change colours: names come from outside."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def print_json(value: object) -> None:
    import json

    # ASCII: what a name holds must not depend on the terminal's encoding.
    print(json.dumps(value, indent=2))


def say(text: str = "") -> None:
    """A line for people; what the terminal's encoding lacks is replaced rather than raised about."""
    try:
        print(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        print(text.encode(encoding, "replace").decode(encoding))
