"""The headers a CUDA C++ source depends on, as NVRTC will find them.

``closure`` follows every ``#include`` from the source through all headers and makes one
digest of what it finds: for each file the content and, for each name it includes, where
that name was found or that it was found nowhere. A header that is edited, deleted, or
created in a directory that is searched earlier changes the digest; a checkout that is
moved does not, because directories count by their position in the search and files by
the name they are included under.

How NVRTC 13 searches (tried out, see tests/keys/test_headers.py):

1. headers given in memory, and the source itself, by exactly the name in the directive;
2. for ``"name"``: the directory of the file that includes it. That of the source is the
   directory of its name, or the working directory; that of a header given in memory
   is its name's, under the working directory. ``-no-source-include`` turns this off;
3. the ``-I`` directories in order. A directory called ``name`` is passed by;
   a name without a dot is tried in each place with ``.stdh`` behind it as well.

An absolute name is tried at 1, then opened. ``-include`` looks in the working directory
for 2. ``#pragma once`` knows files by inode, so which of them are one file counts too.

Headers of a CUDA toolkit count by content as well, but are not each looked at again:
their directories stand for them, as installing another release changes those.

Paths come into the output where ``__FILE__``, ``assert`` and their like are used, and
with ``-lineinfo`` and ``-G``: then the directories as they were spelled are part of the
digest, in the latter case all of them. (A path that an assertion inside a toolkit header
shows is not: a toolkit counts by what it is, not where.) ``__DATE__``, ``__TIME__`` and
``__TIMESTAMP__`` make a compile uncacheable.
"""

from __future__ import annotations

import os

from blake3 import blake3

from ...errors import UncacheableError
from .. import memo
from ..digest import ENCODERS, digest_of, encode, labelled
from . import manifest
from .marked import SIGNS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .manifest import Manifest

#: Closures of this process that are remembered; beyond it the oldest is forgotten.
_MOST = 512

_recent: dict[object, Manifest] = {}


class Closure:
    """What a source depends on besides itself. The source's own text is for the caller to put into the key."""

    __slots__ = ("_manifest",)

    _manifest: Manifest

    def __init__(self, found: Manifest) -> None:
        self._manifest = found

    @property
    def digest(self) -> str:
        """64 hexadecimal digits that differ whenever what the compiler would read differs."""
        return self._manifest.digest

    @property
    def names(self) -> tuple[str, ...]:
        """The files in the closure, by the names they were included under."""
        return self._manifest.names

    def unchanged(self) -> bool:
        """Whether everything is still as it was. To be asked after a compile and before its result is stored."""
        return self._manifest.holds()

    __hotstart_label__ = "hotstart.Closure"

    def __hotstart_key__(self) -> str:
        return self._manifest.digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Closure) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Closure {self.digest[:12]} of {len(self.names)} files>"


# The general encoding of an object with __hotstart_key__, spelled out: it is part of every key of NVRTC's.
_ENCODED = labelled(Closure.__hotstart_label__, b"s64:")
ENCODERS[Closure] = lambda value, _: _ENCODED + value.digest.encode()


def closure(
    source: str | bytes,
    *,
    name: str = "default_program",
    include_dirs: Sequence[str] = (),
    defines: Sequence[str] = (),
    undefines: Sequence[str] = (),
    pre_includes: Sequence[str] = (),
    headers: Mapping[str, str | bytes] | None = None,
    source_dir: bool = True,
    paths: bool = False,
    memo_dir: str | None = None,
) -> Closure:
    """The closure of ``source``, compiled under ``name`` with these options.

    ``headers`` are those given to NVRTC in memory. ``defines`` and ``undefines``
    are the operands of ``-D`` and ``-U``, ``pre_includes`` of ``-include``;
    ``source_dir`` false stands for ``-no-source-include``, ``paths`` true for
    ``-lineinfo`` or ``-G``. ``compilers.options`` makes all of them of a list of
    options. ``memo_dir`` is where closures are remembered for other processes:
    None means hotstart's home, "" nowhere.

    Raises UncacheableError, with the reason, when what the compiler would read
    cannot be bounded or would put the time into its output.
    """
    try:
        here = os.getcwd()
    except OSError:
        raise UncacheableError("there is no working directory", "headers") from None
    request = (
        source,
        name,
        here,
        tuple(include_dirs),
        tuple(defines),
        tuple(undefines),
        tuple(pre_includes),
        tuple(sorted(headers.items())) if headers else (),
        source_dir,
        paths and (os.environ.get("PWD"),),
    )
    known = _recent.get(request)
    if known is not None and known.holds():
        return Closure(known)
    if not pre_includes and _alone(source, defines):
        # Most generated kernels: an answer without importing what could look further.
        shown = (here, os.environ.get("PWD", ""), name, request[3]) if paths else ()
        content = (manifest.VERSION, "alone", os.path.basename(name), shown)
        return Closure(_remember(request, manifest.Manifest(digest_of(encode(content)), ())))
    directory = memo.default_directory() if memo_dir is None else memo_dir
    label = ""
    if directory:
        label = blake3(encode(request)).hexdigest(16)
        found = manifest.recall(directory, label)
        if found is not None and found.holds():
            return Closure(_remember(request, found))
    from .search import Search

    found = Search(here, request[3], dict(headers or {}), source_dir).run(
        source, name, request[4], request[5], request[6], paths
    )
    if directory:
        found.store(directory, label)
    return Closure(found if found.perishable else _remember(request, found))


def _alone(source: str | bytes, defines: Sequence[str]) -> bool:
    """Whether a source includes nothing and shows neither path nor time, at a glance."""
    text = source if isinstance(source, str) else source.decode("latin-1")
    if "\\" in text:
        text = text.replace("\\\n", "").replace("\\\r\n", "").replace("\\\r", "")
    text = "\n".join((text.replace("static_assert", ""), *defines))
    return not any(sign in text for sign in SIGNS)


def _remember(request: object, found: Manifest) -> Manifest:
    if len(_recent) >= _MOST:
        _recent.pop(next(iter(_recent)), None)
    _recent[request] = found
    return found


def forget() -> None:
    """Look at every header again, as a new process would."""
    import sys

    _recent.clear()
    search = sys.modules.get(f"{__name__}.search")
    if search is not None:
        search.SCANS.clear()
