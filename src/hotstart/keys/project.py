"""``project_fingerprint``: the content of source trees, wherever they are checked out."""

from __future__ import annotations

import os
import stat

from ..errors import UncacheableError, UsageError
from .digest import digest_of, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from re import Pattern

#: Raised when the meaning of a project fingerprint changes.
VERSION = 1

#: What tools write beside the source: compiled files, caches, the history. Names, or patterns with ``*``.
IGNORED = (
    *(
        "__pycache__",
        "*.pyc",
        "*.pyo",
        "*.pyd",
        "*.so",
        "*.so.[0-9]*",
        "*.dylib",
        "*.dll",
        "*.o",
        "*.obj",
        "*.a",
        "*.lib",
    ),
    *("*.cubin", "*.fatbin", "*.hsaco"),
    *(".git", ".hg", ".svn", ".DS_Store", ".ipynb_checkpoints"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", "*.egg-info"),
)


def project_fingerprint(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, ignore: Iterable[str] = ()
) -> str:
    """64 hexadecimal digits that change with the content of the given files and directories.

    A directory counts through the files in it, by relative path and content, and not
    through its own name; a file given by itself counts with its name. Times, modes,
    empty directories and the place on disk do not count. The order of several paths
    does, as it does on a search path.

    ``IGNORED`` and virtual environments are left out, and so is what ``ignore`` names:
    patterns as in a shell, matched against the name and against the relative path
    with "/".

    Symbolic links are followed, because compilers follow them: what a link leads to
    counts under the link's name, wherever it is. A link that leads nowhere counts as
    that, and one that leads back to a directory around it as the way back.

    Raises UsageError for a path that does not exist, UncacheableError naming a file
    that cannot be read.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    elif isinstance(paths, set | frozenset):
        raise UsageError("the order of the paths counts, and a set has none; pass a list")
    from fnmatch import translate
    from re import compile

    ignored = compile("|".join(translate(pattern.rstrip("/")) for pattern in (*IGNORED, *ignore)))
    roots = []
    for path in paths:
        root = os.fspath(path)
        if not os.path.exists(root):
            raise UsageError(f"no such file or directory: {root!r}")
        if os.path.isdir(root):
            tree: list[tuple[str, str, str]] = []
            _read_directory(root, "", ignored, [os.stat(root)], tree)
            roots.append(("directory", sorted(tree)))
        elif os.path.isfile(root):
            roots.append(("file", [_read_file(root, os.path.basename(root))]))
        else:
            raise UsageError(f"neither a file nor a directory: {root!r}")
    if not roots:
        raise UsageError("no path was given: every project would have the same fingerprint")
    return digest_of(encode(("hotstart project", VERSION, roots)))


def _read_directory(
    directory: str,
    prefix: str,
    ignored: Pattern[str],
    above: list[os.stat_result],
    tree: list[tuple[str, str, str]],
) -> None:
    """Add what is in ``directory`` to ``tree``: relative path, what it is, digest. ``above`` are those around it."""
    try:
        names = [entry.name for entry in os.scandir(directory)]
    except OSError as error:
        raise UncacheableError(f"cannot be read: {error.strerror}", prefix or ".") from None
    if prefix and "pyvenv.cfg" in names:
        return  # a virtual environment is installed, not written
    for name in names:
        relative = prefix + name
        if ignored.match(name) or ignored.match(relative):
            continue
        path = os.path.join(directory, name)
        try:
            status = os.stat(path)
        except OSError as error:
            if not os.path.islink(path):
                raise UncacheableError(f"cannot be read: {error.strerror}", relative) from None
            tree.append((relative, "dangling", ""))
            continue
        if stat.S_ISDIR(status.st_mode):
            back = next((up for up, other in enumerate(reversed(above), 1) if os.path.samestat(status, other)), 0)
            if back:
                tree.append((relative, "back", str(back)))
            else:
                _read_directory(path, relative + "/", ignored, [*above, status], tree)
        elif stat.S_ISREG(status.st_mode):
            tree.append(_read_file(path, relative))
        else:
            # A pipe or a socket: reading it could wait for ever, and it holds no source.
            tree.append((relative, "special", ""))


def _read_file(path: str, relative: str) -> tuple[str, str, str]:
    try:
        with open(path, "rb") as file:
            return relative, "file", digest_of(file.read())
    except OSError as error:
        raise UncacheableError(f"cannot be read: {error.strerror}", relative) from None
