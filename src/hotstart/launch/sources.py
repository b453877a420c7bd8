"""The program's own files, by name and digest: so that a miss can be put down to an edit.

Two circles. The inner one is what the program imports, followed through its files from
their text: an edit there is a likely cause. The outer one is whatever else looks like
source in the same directories: headers, settings, and modules imported in ways that the
text does not show. An edit there may be one.
"""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: What can change what is compiled: code, headers, and the settings people keep beside them.
_ENDINGS = (
    *(".py", ".pyi", ".pyx", ".pxd", ".cu", ".cuh", ".h", ".hh", ".hpp", ".hxx", ".inl", ".c", ".cc", ".cpp", ".cxx"),
    *(".cl", ".hip", ".ptx", ".ll", ".mlir", ".metal", ".toml", ".yaml", ".yml", ".json", ".cfg", ".ini"),
)
_SKIPPED = frozenset(
    (
        "__pycache__",
        "node_modules",
        "site-packages",
        "dist-packages",
        "build",
        "dist",
        "venv",
        "env",
        "wandb",
        "outputs",
    )
)

MOST_FILES = 1000
_MOST_BYTES = 32 << 20
_LARGEST = 1 << 20
_DEEPEST = 6

_TOO_MUCH = "more files than are looked at"


class Tree:
    """``digests``: what is imported, relative name → digest. ``beside``: the rest. ``left_out``: why not all, if so."""

    __slots__ = ("_budget", "_deadline", "_seen", "beside", "digests", "left_out")

    def __init__(self, seconds: float) -> None:
        self.digests: dict[str, str] = {}
        self.beside: dict[str, str] = {}
        self.left_out = ""
        self._budget = [MOST_FILES, _MOST_BYTES]
        self._deadline = time.monotonic() + seconds
        self._seen: set[tuple[int, int]] = set()

    def admit(self, size: int) -> bool:
        """Whether one more file of this size is within bounds."""
        if self._budget[0] <= 0 or self._budget[1] < size or time.monotonic() > self._deadline:
            self.left_out = _TOO_MUCH
            return False
        self._budget[0] -= 1
        self._budget[1] -= size
        return True

    def enter(self, info: os.stat_result) -> bool:
        """Whether this directory was not walked yet: links can lead in circles."""
        identity = info.st_dev, info.st_ino
        if identity in self._seen:
            return False
        self._seen.add(identity)
        return True


def files(paths: Iterable[str]) -> dict[str, str]:
    """Digests of single files, by base name; what cannot be read is left out."""
    found = {}
    for path in paths:
        data = _read(path)
        if data is not None:
            found[os.path.basename(path)] = _digest(data)
    return found


def tree(
    paths: Iterable[str], roots: Iterable[str], seconds: float, code: str = "", besides: Iterable[str] = ()
) -> Tree:
    """The given files, what they import from ``roots``, and everything else like source there.

    ``code`` is a program given on the command line; ``besides`` are directories that hold no
    source of the program's, wherever they are. Bounded, and saying so when a bound was
    met. A home directory or ``/`` is not walked: a program started there does not own what is in it.
    """
    found = Tree(seconds)
    for place in besides:
        try:
            found.enter(os.stat(place))
        except OSError:
            continue
    places = list(dict.fromkeys(os.path.abspath(root) for root in roots))
    inner = _follow(found, list(paths), places, code)
    for root in places:
        if root in ("/", os.path.expanduser("~"), (os.environ.get("TMPDIR") or "/tmp").rstrip("/")):
            found.left_out = f"{root} is not walked"
        elif not found.left_out:
            _walk(found, root, "", 0, inner)
    return found


# -- what is imported ------------------------------------------------------------------


def _follow(found: Tree, paths: list[str], roots: list[str], code: str) -> set[str]:
    """Note the files and all they import; the paths that were noted."""
    waiting = [os.path.abspath(path) for path in paths]
    seen = set(waiting)
    given = len(waiting)
    texts: list[tuple[str, bytes]] = [("", code.encode("utf-8", "surrogateescape"))] if code else []
    while waiting or texts:
        if texts:
            origin, text = texts.pop()
            for path in _candidates(text, os.path.dirname(origin), roots):
                if path not in seen and os.path.isfile(path):
                    seen.add(path)
                    waiting.append(path)
            continue
        path = waiting.pop(0)
        data = _read(path)
        if data is None or not found.admit(len(data)):
            continue
        found.digests[_relative(path, roots, given > 0)] = _digest(data)
        given -= 1
        if path.endswith(".py") or data.startswith(b"#!"):
            texts.append((path, data))
    return seen


def _relative(path: str, roots: list[str], given: bool) -> str:
    for root in roots:
        if path.startswith(root + os.sep):
            return path[len(root) + 1 :]
    return os.path.basename(path) if given else path


def _candidates(text: bytes, directory: str, roots: list[str]) -> Iterator[str]:
    """Files that the imports of a text may mean."""
    for module, names in imports(text.decode("utf-8", "replace")):
        level = len(module) - len(module.lstrip("."))
        bases = roots
        if level:
            base = directory
            for _ in range(level - 1):
                base = os.path.dirname(base)
            bases = [base]
        parts = [part for part in module[level:].split(".") if part]
        for base in bases:
            place = base
            for part in parts:
                place = f"{place}/{part}"
                yield f"{place}.py"
                yield f"{place}/__init__.py"
            for name in names:
                yield f"{place}/{name}.py"
                yield f"{place}/{name}/__init__.py"


def imports(text: str) -> Iterator[tuple[str, list[str]]]:
    """(module, names) of every import statement that a line begins with, nested ones too.

    By lines and not by ``ast``, which takes longer to import than this to run. A line of a
    docstring that reads like an import costs a look at a file that is not there.
    """
    lines = iter(text.splitlines())
    for line in lines:
        line = line.strip()
        if line.startswith("import "):
            for part in line[7:].partition("#")[0].partition(";")[0].split(","):
                words = part.split()
                if words:
                    yield words[0], []
        elif line.startswith("from ") and " import" in line:
            module, _, rest = line[5:].partition(" import")
            rest = rest.partition("#")[0]
            while ("(" in rest and ")" not in rest) or rest.rstrip().endswith("\\"):
                more = next(lines, None)
                if more is None:
                    break
                rest = rest.rstrip().rstrip("\\") + " " + more.partition("#")[0]
            names = [part.split()[0] for part in rest.strip(" ()").replace(")", "").split(",") if part.split()]
            yield module.strip(), [name for name in names if name.isidentifier()]


# -- the rest ----------------------------------------------------------------------------


def _walk(found: Tree, directory: str, prefix: str, depth: int, inner: set[str]) -> None:
    try:
        with os.scandir(directory) as items:
            entries = sorted(items, key=lambda item: item.name)
    except OSError:
        return
    if prefix and any(item.name == "pyvenv.cfg" for item in entries):
        return  # installed, not written
    below = []
    for item in entries:
        name = item.name
        if name.startswith(".") or name in _SKIPPED or name.endswith(".egg-info"):
            continue
        try:
            info = item.stat()
        except OSError:
            continue
        if stat.S_ISDIR(info.st_mode):
            if depth < _DEEPEST and found.enter(info):
                below.append((item.path, f"{prefix}{name}/"))
            continue
        wanted = name.endswith(_ENDINGS) and stat.S_ISREG(info.st_mode) and info.st_size <= _LARGEST
        if not wanted or item.path in inner:
            continue
        if not found.admit(info.st_size):
            return
        data = _read(item.path)
        if data is not None:
            found.beside[prefix + name] = _digest(data)
    for path, below_prefix in below:
        if found.left_out:
            return
        _walk(found, path, below_prefix, depth + 1, inner)


def _digest(data: bytes) -> str:
    from ..keys.digest import digest_of

    return digest_of(data)[:16]


def _read(path: str) -> bytes | None:
    try:
        # Not blocking: a named pipe in the place of a file would wait for a writer for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size > _MOST_BYTES:
            return None
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read()
    except OSError:
        return None
    finally:
        os.close(fd)
