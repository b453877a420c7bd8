"""The text of a function: what bytecode does not keep.

Triton, Warp, Taichi and their kin compile the text. ``x: tl.constexpr = 3`` inside
a function, or a branch under ``if False``, means something to them and leaves no
trace in bytecode. So where the text can be found it counts too, beside the
bytecode and never instead of it: a text that is missing, stale or not the right
one can only make two fingerprints differ that need not.

White space and comments are taken out. That would be too much if strings were told
apart by the text; they are by the bytecode. A syntax tree, which forgives every
change of layout, was tried: it made the first fingerprint of a function twice as
expensive.
"""

from __future__ import annotations

import os
import stat
import sys
from types import CodeType

from ..digest import digest_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    #: What a text is known by, or the text itself where it is in no file.
    Version = tuple[object, ...]

_LINES: dict[str, tuple[Version, list[str]]] = {}
_LINES_COUNT = 256
_DIGESTS: dict[int, tuple[CodeType, Version, str]] = {}
_DIGESTS_COUNT = 8192


def source_digest(code: CodeType, namespace: dict[str, object], versions: dict[str, Version | None]) -> str:
    """The digest of the text of the function ``code`` was compiled from; empty when there is no text.

    ``namespace`` are the function's globals. ``versions`` remembers the state of
    files within one fingerprint, so that each is looked at once.
    """
    if code.co_name.startswith("<"):
        return ""  # a lambda or a comprehension is an expression: nothing in it is lost in bytecode
    filename = code.co_filename
    if not os.path.isabs(filename) and not filename.startswith("<"):
        own = namespace.get("__file__")
        if isinstance(own, str) and os.path.basename(own) == os.path.basename(filename):
            filename = own  # compiled under a relative name; the working directory may have changed since
    try:
        version = versions[filename]
    except KeyError:
        version = versions[filename] = _version(filename)
    if version is None:
        return ""
    known = _DIGESTS.get(id(code))
    if known is None or known[1] != version:
        if len(_DIGESTS) >= _DIGESTS_COUNT:
            _DIGESTS.clear()
        text = _text(code, _lines(filename, version))
        known = _DIGESTS[id(code)] = (code, version, digest_of(text.encode("utf-8", "surrogatepass")))
    return known[2]


def _version(filename: str) -> Version | None:
    """What changes when the text does; None when there is none."""
    if not filename.startswith("<"):
        try:
            status = os.stat(filename)
            if not stat.S_ISREG(status.st_mode):
                return None  # a pipe would never end
            return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        except OSError:
            pass
    # A notebook cell: IPython puts its text where the traceback module will look for it.
    entry = getattr(sys.modules.get("linecache"), "cache", {}).get(filename)
    return ("".join(entry[2]),) if entry is not None and len(entry) == 4 else None


def _lines(filename: str, version: Version) -> list[str]:
    known = _LINES.get(filename)
    if known is None or known[0] != version:
        if len(version) == 1:
            text = str(version[0])
        else:
            try:
                with open(filename, "rb") as file:
                    # Whatever its encoding: what is compared is written in the same one.
                    text = file.read().decode("utf-8", "surrogateescape")
            except OSError:
                text = ""
        if len(_LINES) >= _LINES_COUNT:
            _LINES.clear()
        known = _LINES[filename] = (version, text.replace("\r\n", "\n").split("\n"))
    return known[1]


def _text(code: CodeType, lines: list[str]) -> str:
    """The lines of the function, without white space and comments."""
    first = code.co_firstlineno - 1
    end = _last_line(code)
    if not 0 <= first < end <= len(lines):
        return ""  # the file has been cut since
    # What follows and is indented deeper belongs to it, though no code came of it: ``x: int`` at the end.
    depth = _indentation(lines[first])
    while end < len(lines) and (not lines[end].strip() or _indentation(lines[end]) > depth):
        end += 1
    text = "".join(["".join(_without_comment(line).split()) for line in lines[first:end]])
    # A file that was edited since has something else on these lines.
    return text if f"def{code.co_name}" in text else ""


def _last_line(code: CodeType) -> int:
    last = max((end for _, end, _, _ in code.co_positions() if end is not None), default=code.co_firstlineno)
    return max([last, *(_last_line(item) for item in code.co_consts if isinstance(item, CodeType))])


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _without_comment(line: str) -> str:
    before, mark, _ = line.partition("#")
    return before if mark and "'" not in before and '"' not in before else line
