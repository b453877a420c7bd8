"""``Toolchain``: what a compiler is, by the bytes of its files, and how that is remembered."""

from __future__ import annotations

import os

from ...errors import UncacheableError
from .. import memo
from ..digest import encoded_once
from . import libraries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..memo import Identity

    Watched = tuple[tuple[str, Identity], ...]
    #: Version, digests, and the files whose change makes both worthless.
    Found = tuple[str, tuple[str, ...], Watched]

#: Installations of one compiler share a memo; the oldest are forgotten beyond this.
_REMEMBERED = 32


@encoded_once
class Toolchain:
    """One compiler: its name, the version it states, digests of its files, settings that change its output.

    No path is part of the key: the same release installed elsewhere is the same compiler.
    """

    __slots__ = ("_encoding", "digests", "name", "settings", "version", "watched")

    name: str
    version: str
    digests: tuple[str, ...]
    #: ``VARIABLE=value`` for each environment variable that changes what this compiler writes.
    settings: tuple[str, ...]
    #: The files the identity was computed from and what they were then. Not part of the key.
    watched: Watched

    def __init__(
        self, name: str, version: str, digests: tuple[str, ...], watched: Watched = (), settings: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.version = version
        self.digests = digests
        self.settings = settings
        self.watched = watched

    __hotstart_label__ = "hotstart.Toolchain"

    def __hotstart_key__(self) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
        return self.name, self.version, self.digests, self.settings

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Toolchain) and self.__hotstart_key__() == other.__hotstart_key__()

    def __hash__(self) -> int:
        return hash(self.__hotstart_key__())

    def __repr__(self) -> str:
        return f"<Toolchain {self.name} {self.version} {' '.join(digest[:12] for digest in self.digests)}>"

    def confirm(self, loaded: str | None = None) -> bool:
        """Whether the library this process has loaded is the one this identity was computed from.

        To be asked after a compile and before its result is stored: finding a
        library is a prediction until it is loaded. ``loaded`` is its path as its
        loader reports it; without it, what the process has mapped decides. False
        also when that cannot be seen or a file is no longer what it was. After
        False the next ``toolchain.nvrtc()`` identifies what was really loaded.
        """
        good = self._confirmed(loaded)
        if not good:
            COMPUTED.pop(self.name, None)
            if loaded is not None:
                LOADED[self.name] = loaded
        return good

    def _confirmed(self, loaded: str | None) -> bool:
        for position, (path, known) in enumerate(self.watched):
            stem, suffix, _ = os.path.basename(path).partition(".so")
            inodes = set(libraries.mapped(stem + suffix).values()) if suffix else set()
            if position == 0 and loaded is not None:
                if status(loaded) != known or (inodes and known[0] not in inodes):
                    return False
            elif inodes:
                if inodes != {known[0]}:
                    # Another copy, or two copies and no word which of them compiled.
                    return False
            elif position == 0:
                # Only the companions of a library come and go: NVRTC closes its built-ins after each compile.
                return False
        return True


#: Identities of this process, by the name of the compiler or by what was asked for.
COMPUTED: dict[object, Toolchain] = {}

#: Libraries that turned out to be elsewhere than predicted, by name.
LOADED: dict[str, str] = {}


def status(path: str) -> Identity | None:
    """The identity of a file now; None when it is not there."""
    try:
        return memo.identity(os.stat(path))
    except OSError:
        return None


def identify(name: str, asked: str, compute: Callable[[], Found], memo_dir: str | None = None) -> Toolchain:
    """The identity of the compiler ``name`` that ``asked`` leads to.

    ``compute`` is called only when no memo knows the answer with every watched
    file unchanged; what it gives with nothing to watch is not remembered.
    ``memo_dir`` is where memos are: None means hotstart's home, "" nowhere.
    """
    directory = memo.default_directory() if memo_dir is None else memo_dir
    label = f"{name}\0{asked}"
    if directory:
        known = _recall(f"{directory}/toolchain-{name}", label)
        if known is not None:
            return known
    version, digests, watched = compute()
    found = Toolchain(name, version, digests, watched)
    if directory and watched and all(memo.settled(known) for _, known in watched):
        _record(f"{directory}/toolchain-{name}", label, found)
    return found


def digest_files(paths: Iterable[str]) -> tuple[tuple[str, ...], Watched]:
    """The BLAKE3 digest of each file, and the identity each had while it was read.

    Raises UncacheableError when one cannot be read or will not hold still.
    """
    from blake3 import blake3

    digests = []
    watched = []
    for path in paths:
        before = status(path)
        try:
            digest = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
        except OSError as error:
            raise UncacheableError(f"{path} cannot be read: {error.strerror or error}", "toolchain") from None
        if before is None or before != status(path):
            raise UncacheableError(f"{path} changes while it is read", "toolchain")
        digests.append(digest)
        watched.append((path, before))
    return tuple(digests), tuple(watched)


# The memo: a line per identity, its fields separated by NUL. What has a newline in its
# path is not remembered.


def _recall(place: str, label: str) -> Toolchain | None:
    payload = memo.read(place)
    if payload is None:
        return None
    text = os.fsdecode(payload)
    start = text.find(f"\n{label}\0") + 1
    if not start:
        return None
    try:
        fields = text[start : text.index("\n", start)].split("\0")
        after = 4 + int(fields[3])
        stat = os.stat
        watched = []
        for index in range(after, len(fields), 5):
            path, inode, size, modified, changed = fields[index : index + 5]
            known = (int(inode), int(size), int(modified), int(changed))
            now = stat(path)
            if (now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns) != known:
                return None
            watched.append((path, known))
    except OSError:
        # Gone, or no longer ours to see: another compiler, or none.
        return None
    except (IndexError, ValueError):
        # The checksum holds and the shape does not: written by something else than this.
        memo.COUNTERS["damaged"] += 1
        return None
    return Toolchain(fields[0], fields[2], tuple(fields[4:after]), tuple(watched))


def _record(place: str, label: str, found: Toolchain) -> None:
    fields = [label, found.version, str(len(found.digests)), *found.digests]
    for path, known in found.watched:
        fields += [path, *map(str, known)]
    line = os.fsencode("\0".join(fields))
    if b"\n" in line:
        return
    # Two processes that write at once: one record is lost, and computed again.
    prefix = os.fsencode(label) + b"\0"
    lines = [old for old in (memo.read(place) or b"").split(b"\n") if old and not old.startswith(prefix)]
    memo.write(place, b"\n%b\n" % b"\n".join([*lines[1 - _REMEMBERED :], line]))
