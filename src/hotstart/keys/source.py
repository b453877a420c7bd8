"""The source of a function as its syntax tree: what bytecode does not keep.

Triton, Warp, Taichi and their kin compile the text. ``x: tl.constexpr = 3`` inside
a function, or a branch under ``if False``, means something to them and leaves no
trace in bytecode. So where the text can be found it counts too, beside the
bytecode and never instead of it: a text that is missing, stale or not the right
one can only make two fingerprints differ that need not. Comments, layout and line
numbers are no part of a syntax tree.
"""

from __future__ import annotations

import os
import sys

from .digest import digest_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from types import CodeType

    #: What a text is known by, and the text itself where it is in no file.
    Version = tuple[object, ...]

#: Lines of a file, and of each function in it, by qualified name, the first line (with decorators) and the last.
_SPANS: dict[str, tuple[Version, list[str], dict[str, list[tuple[int, int]]]]] = {}
_SPANS_COUNT = 64
_DIGESTS: dict[int, tuple[CodeType, Version, str]] = {}
_DIGESTS_COUNT = 8192


def source_digest(code: CodeType, namespace: dict[str, object], versions: dict[str, Version | None]) -> str:
    """The digest of the syntax tree of the function ``code`` was compiled from; empty when there is no text.

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
        known = _DIGESTS[id(code)] = (code, version, _digest(code, filename, version))
    return known[2]


def _version(filename: str) -> Version | None:
    """What changes when the text does; None when there is none."""
    if not filename.startswith("<"):
        try:
            status = os.stat(filename)
            return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        except OSError:
            pass
    # A notebook cell: IPython puts its text where the traceback module will look for it.
    entry = getattr(sys.modules.get("linecache"), "cache", {}).get(filename)
    return ("".join(entry[2]),) if entry is not None and len(entry) == 4 else None


def _digest(code: CodeType, filename: str, version: Version) -> str:
    import ast

    lines, spans = _read(filename, version)
    found = spans.get(code.co_qualname, [])
    # Several under one name (if/else, redefinition): the one on the right line, or all when the file has moved on.
    found = [span for span in found if span[0] == code.co_firstlineno] or found
    parts = []
    for first, last in found:
        # Under an "if", indented text is a program without a change to the strings in it.
        text = "if 1:\n" + "\n".join(lines[first - 1 : last])
        try:
            parts.append(ast.dump(ast.parse(text if lines[first - 1][:1].isspace() else text[6:])))
        except (SyntaxError, ValueError, RecursionError):
            parts.append(text)
    return digest_of("\0".join(parts).encode("utf-8", "surrogatepass")) if parts else ""


def _read(filename: str, version: Version) -> tuple[list[str], dict[str, list[tuple[int, int]]]]:
    known = _SPANS.get(filename)
    if known is None or known[0] != version:
        import ast

        if len(version) == 1:
            text = str(version[0])
        else:
            try:
                text = _text(filename)
            except (OSError, SyntaxError, UnicodeError):
                text = ""
        spans: dict[str, list[tuple[int, int]]] = {}
        try:
            _collect(ast.parse(text).body, "", spans)
        except (SyntaxError, ValueError, RecursionError):
            pass  # the file is being edited: no text, and the bytecode still counts
        if len(_SPANS) >= _SPANS_COUNT:
            _SPANS.clear()
        known = _SPANS[filename] = (version, text.split("\n"), spans)
    return known[1], known[2]


def _text(filename: str) -> str:
    from tokenize import open as open_source

    with open_source(filename) as file:
        return file.read()


def _collect(body: list[ast.stmt], prefix: str, spans: dict[str, list[tuple[int, int]]]) -> None:
    """Note every function in ``body`` under the qualified name its code object has."""
    import ast

    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            spans.setdefault(prefix + node.name, []).append((first, node.end_lineno or node.lineno))
            _collect(node.body, f"{prefix}{node.name}.<locals>.", spans)
        elif isinstance(node, ast.ClassDef):
            _collect(node.body, f"{prefix}{node.name}.", spans)
        else:
            for name in ("body", "orelse", "finalbody"):
                _collect(getattr(node, name, []), prefix, spans)
            for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                _collect(part.body, prefix, spans)
