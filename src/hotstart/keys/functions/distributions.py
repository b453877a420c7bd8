"""Which installed distribution a file belongs to, and what that distribution is.

A distribution is what a ``*.dist-info`` directory with a RECORD says it is: its
name, its version and the digest of the RECORD's own list of file digests, so that
two builds of one version differ. Everything outside is the user's own code: an
editable install (its files lie elsewhere), a vendored tree, a loose file in
site-packages, and a file whose content is no longer what RECORD promised.

``importlib.metadata`` is not used: it costs 67 ms to import. A site directory is
listed once, a RECORD is read when the first file of its distribution is asked
for, and both are forgotten when the directory changes.
"""

from __future__ import annotations

import os
import stat
import sys
from bisect import bisect_left

from ..digest import digest_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

#: The identity of the standard library and the interpreter. Its version is in every fingerprint.
PYTHON = "python"

_STDLIB = os.path.dirname(os.__file__) + os.sep
_SITES = ("site-packages", "dist-packages")

#: Above this size a file is checked by its length alone: a compiled module may have a gigabyte.
_HASHED_UP_TO = 4 << 20


class _Distribution:
    """One ``*.dist-info``; its RECORD is read on demand."""

    __slots__ = ("_identity", "_record", "directory", "name", "version")

    def __init__(self, site: str, entry: str) -> None:
        name, _, version = entry.removesuffix(".dist-info").partition("-")
        self.directory = os.path.join(site, entry)
        self.name = _normal(name)
        self.version = version
        self._record: bytes | None = None
        self._identity = ""

    def promise(self, path: bytes) -> bytes | None:
        """What RECORD says of the file: ``sha256=…,size``; None when it does not list it.

        Searched in the text: parsing torch's fifteen thousand lines costs ten times more.
        """
        if self._record is None:
            try:
                record = os.path.join(self.directory, "RECORD")
                if not stat.S_ISREG(os.stat(record).st_mode):
                    raise OSError(f"{record} is no file")
                with open(record, "rb") as file:
                    self._record = b"\n" + file.read() + b"\n"
            except OSError:
                self._record = b""  # without a RECORD nothing is known to belong to it
        start = self._record.find(b"\n" + path + b",")
        if start < 0:
            return None
        start += len(path) + 2
        return self._record[start : self._record.index(b"\n", start)].rstrip()

    @property
    def identity(self) -> str:
        """Name, version, digest of what was installed.

        Only what came with the distribution counts: scripts carry the path of the
        interpreter, the installer's own notes in dist-info the way it was installed,
        and compiled files no digest.
        """
        if not self._identity:
            lines = sorted(line for line in (self._record or b"").splitlines() if not line.endswith(b",,"))
            for foreign in (os.path.basename(self.directory).encode() + b"/", b"../"):
                # All that begin with it stand together; "0" is what follows "/".
                del lines[bisect_left(lines, foreign) : bisect_left(lines, foreign[:-1] + b"0")]
            content = digest_of(b"\n".join(lines))
            self._identity = f"{self.name} {self.version} {content[:32]}"
        return self._identity


class _Site:
    """One directory that distributions are installed into."""

    __slots__ = ("_by_name", "_last", "distributions", "installed", "path", "stamp")

    def __init__(self, path: str) -> None:
        self.path = path
        self.stamp = _stamp(path)
        self.installed = _installed(path)
        self.distributions = [_Distribution(path, entry) for entry, _ in self.installed]
        self._by_name = {distribution.name: distribution for distribution in self.distributions}
        #: Top-level names and the distribution last found under each: PIL is pillow's.
        self._last: dict[str, _Distribution] = {}

    def find(self, path: str) -> tuple[_Distribution, bytes] | None:
        """The distribution whose RECORD lists ``path``, relative to this directory, and what it says of it."""
        top = path.partition("/")[0].partition(".")[0]
        raw = path.encode("utf-8", "surrogateescape")
        likely = [self._last.get(top), self._by_name.get(_normal(top))]
        for distribution in (*likely, *self.distributions):
            if distribution is None:
                continue
            promise = distribution.promise(raw)
            if promise is not None:
                self._last[top] = distribution
                return distribution, promise
        return None


_sites: dict[str, _Site] = {}
_owners: dict[str, str | None] = {}
_search_path: list[str] = []

#: Raised whenever something may have been installed; what was derived from ``owner`` is void.
generation = 0


def refresh() -> None:
    """Forget what was known if a site directory or sys.path has changed: a stat for each."""
    global generation, _search_path
    changed = sys.path != _search_path
    for site in list(_sites.values()):
        stamp = _stamp(site.path)
        if stamp != site.stamp:
            # A log file written beside the code changes the directory too, and that much is no reason.
            site.stamp = stamp
            changed = changed or _installed(site.path) != site.installed
    if changed:
        _search_path = list(sys.path)
        _sites.clear()
        _owners.clear()
        generation += 1


def owner(filename: str) -> str | None:
    """The identity of the distribution that ``filename`` belongs to; None for the user's own code.

    ``PYTHON`` for the standard library. The answer holds until ``refresh`` finds a change.
    """
    try:
        return _owners[filename]
    except KeyError:
        before = generation
        found = _find_owner(filename)
        if before == generation:  # another thread may have noticed an installation meanwhile
            _owners[filename] = found
        return found


def module_owner(module: ModuleType) -> str | None:
    """The identity of the distribution that defines ``module``; None for a module of the user's own."""
    namespace = vars(module)
    filename = namespace.get("__file__")
    if isinstance(filename, str):
        return owner(filename)
    # The specification knows better: the module _io calls itself io.
    name = getattr(namespace.get("__spec__"), "name", None) or namespace.get("__name__")
    if not isinstance(name, str) or "__path__" in namespace:
        return None
    if sys.modules.get(name) is module and (name in sys.builtin_module_names or _is_frozen(f"<frozen {name}>")):
        return PYTHON
    # A compiled module makes others inside it: torch._C._nn has no file of its own.
    parent, _, last = name.rpartition(".")
    above = sys.modules.get(parent)
    if above is not None and (sys.modules.get(name) is module or vars(above).get(last) is module):
        return module_owner(above)
    return None


def _find_owner(filename: str) -> str | None:
    if filename.startswith("<"):
        return PYTHON if _is_frozen(filename) else None
    site, path = _split(filename)
    if site is None:
        return PYTHON if filename.startswith(_STDLIB) else None
    known = _sites.get(site)
    if known is None:
        known = _sites[site] = _Site(site)
    found = known.find(path.replace(os.sep, "/"))
    return found[0].identity if found is not None and _as_promised(filename, found[1]) else None


def _split(filename: str) -> tuple[str | None, str]:
    """The site directory that ``filename`` lies in, and its path there."""
    for name in _SITES:
        at = filename.rfind(f"{os.sep}{name}{os.sep}")
        if at >= 0:
            end = at + 1 + len(name)
            return filename[:end], filename[end + 1 :]
    if filename.startswith(_STDLIB):
        return None, ""
    # pip install --target, often inside a project that is on the path as well: the innermost entry is meant.
    # Most entries turn out to hold no distribution at all.
    around = (entry.rstrip(os.sep) for entry in sys.path)
    site = max((site for site in around if site and filename.startswith(site + os.sep)), key=len, default=None)
    return (site, filename[len(site) + 1 :]) if site is not None else (None, "")


def _installed(site: str) -> list[tuple[str, int]]:
    """The ``*.dist-info`` directories of ``site``, each with the time of its RECORD."""
    try:
        names = sorted(entry.name for entry in os.scandir(site) if entry.name.endswith(".dist-info"))
    except OSError:
        return []
    return [(name, _stamp(os.path.join(site, name, "RECORD"))) for name in names]


def _as_promised(filename: str, promise: bytes) -> bool:
    """Whether the file still is what RECORD says: somebody who edits site-packages has made it their own code."""
    method, _, rest = promise.partition(b"=")
    digest, _, size = rest.partition(b",")
    try:
        status = os.stat(filename)
        length = status.st_size
        if not stat.S_ISREG(status.st_mode):
            return False
        if method != b"sha256" or (size and int(size) != length):
            return False
        if length > _HASHED_UP_TO:
            return bool(size)
        from binascii import b2a_base64
        from hashlib import sha256

        with open(filename, "rb") as file:
            content = file.read()
    except (OSError, ValueError):
        return False
    return b2a_base64(sha256(content).digest(), newline=False).translate(_URL_SAFE).rstrip(b"=") == digest


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def _is_frozen(filename: str) -> bool:
    if not filename.startswith("<frozen "):
        return False
    return filename[8:-1].partition(".")[0] in sys.stdlib_module_names


def _normal(name: str) -> str:
    return name.replace("-", "_").replace(".", "_").lower()


def _stamp(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
