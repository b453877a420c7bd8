"""``SourceCache``: generated source as a file that can be imported, read in a traceback and stepped through.

    ab/NAME_DIGEST.py   the source, nothing added: line numbers are its own
    ab/__pycache__      an empty file, so that Python keeps no bytecode here (see ``generated``)
    lock                held while a file is added; holds the bytes there are
    leases/             who uses which files (``leases``)
    tmp/

A file is named after the digest of its source *and* the kernel's name: two kernels
with the same text and different symbols are two files. Every file that is handed out
was compared with the source, byte by byte, and belongs to a lease of this process,
so that it is not evicted while the process lives.
"""

from __future__ import annotations

import os
import stat
import time

from ..errors import StoreError, UsageError
from ..keys.digest import digest_of, encode
from ..log import say
from ..store import files
from ..store.counters import Counters
from ..store.sizes import parse_size
from .leases import lease_on, leased
from .private import Private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

#: Part of every digest: raised when the layout changes.
_LAYOUT = "hotstart source 1"

#: Hexadecimal digits in a file name: 128 bits.
_DIGITS = 32

#: What is kept of a kernel's name in the name of its file; all of it is in the digest.
_NAME = 80

#: Eviction makes more room than is needed, so that listing all files is rare.
_LOW_WATERMARK = 0.9

#: How long adding a file waits for its turn; the holder needs a millisecond, unless it has to evict.
_LOCK_WAIT = 5.0

#: A temporary file this old belongs to nobody alive.
_ORPHAN_AGE = 3600.0

_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # or opening a FIFO somebody left there would never return
_OK, _ABSENT, _WRONG = "ok", "absent", "wrong"


class SourceCache:
    """A directory of generated sources, shared by processes; at most ``max_size`` of them, least recently used out.

    ``root`` is ``sources`` under hotstart's home unless given; ``max_size`` of 0, or
    ``read_only``, never writes there. Raises StoreError and UnsafeStoreError for a
    directory that cannot be one or that others can write, as ``Cache`` does.

    Whatever the disk does, a source gets a file: where the directory cannot take it
    (full, read-only, over the budget with everything in use) that is one in a private
    temporary directory of this process, counted and said once.
    """

    def __init__(
        self, root: str | os.PathLike[str] | None = None, *, max_size: int | str = "256MiB", read_only: bool = False
    ) -> None:
        if root is None:
            from ..config import home_directory, load

            settings = load()
            root = f"{home_directory(settings['home'])}/sources"
            read_only = read_only or settings["read_only"] or settings["disable"]
        self.root = os.path.abspath(os.fspath(root))
        self.max_size = parse_size(max_size, "max_size", zero=True)
        self._counters = Counters()
        #: Why nothing is written here, if so; and whether what is there may be read.
        self.unwritable = "opened read-only" if read_only else "" if self.max_size else "max_size is 0"
        self._readable = self.max_size > 0
        try:
            self.root = files.private_directory(self.root, writable=not self.unwritable)
        except StoreError:
            raise
        except OSError as error:
            self._counters.error("open", error)
            self.unwritable = self.unwritable or error.strerror or str(error)
            self._readable = False  # nobody has looked whose it is
        self._private = Private()

    # -- the two -----------------------------------------------------------------------

    def path_for(self, source: str, name: str, *, suffix: str = ".py") -> str:
        """The path of a file that holds exactly ``source``, filed under source, name and suffix.

        The same every time, in every process, for as long as this process lives.
        ``name`` may be anything: what cannot stand in a file name or a module name is
        replaced there. Raises UsageError for a source that no such file can hold, and
        StoreError when not even a temporary directory can be written.
        """
        data, stem, digest = _described(source, name, suffix)
        if self._readable:
            path = f"{self.root}/{digest[:2]}/{stem}{suffix}"
            try:
                if self._hand_out(path, digest, data):
                    return path
            except OSError as error:
                self._counters.error("write", error)
                if self._check(path, data)[0] == _OK:
                    # It is there and right; only nobody can be told that we use it.
                    self._counters.add("hit")
                    self._counters.add("unleased")
                    return path
                self._divert(error.strerror or str(error))
        elif self.max_size:
            self._divert(self.unwritable)
        self._counters.add("diverted")
        return self._private.path_for(f"{stem}{suffix}", data)

    def load(self, source: str, name: str) -> ModuleType:
        """The module that ``source`` makes, executed once per process; its ``__file__`` is ``path_for``.

        What runs is the source that was given, never the file. Raises what the source raises.
        """
        from . import generated

        data, stem, _ = _described(source, name, ".py")
        try:
            path = self.path_for(source, name)
        except StoreError as error:
            self._divert(str(error))
            path = f"<{stem}>"  # no file; linecache gets the text from the loader
        return generated.load(stem, path, data)

    def _divert(self, reason: str) -> None:
        say(
            "warning",
            f"{self.root}: {reason}; generated sources go to a private temporary directory",
            once=f"sources {self.root}",
        )

    # -- handing out -------------------------------------------------------------------

    def _hand_out(self, path: str, digest: str, data: bytes) -> bool:
        """Whether the file at ``path`` is there, checked and ours to use; put there if need be. Raises OSError."""
        if self.unwritable:
            found = self._check(path, data)[0] == _OK
            self._counters.add("hit" if found else "refused.unwritable")
            if not found:
                self._divert(self.unwritable)
            return found
        lease = lease_on(f"{self.root}/leases")
        # One that is leased already cannot be evicted: no turn is needed to look at it.
        if digest in lease.names and self._check(path, data)[0] == _OK:
            self._counters.add("hit")
            return True
        turn = self._take_turn()
        try:
            lease.add(digest)
            state, old = self._check(path, data)
            if state == _OK:
                self._counters.add("hit")
                return True
            if turn >= 0 and not self._make_room(turn, len(data)):
                self._divert(f"no room for {len(data)} bytes")
                return False
            self._write(path, data, old)
        finally:
            if turn >= 0:
                files.close_quietly(turn)
        self._counters.add("written" if state == _ABSENT else "replaced")
        if state == _WRONG:
            say("warning", f"{path} was not the source it is named after; replaced", once="source replaced")
        return True

    def _check(self, path: str, data: bytes) -> tuple[str, int]:
        """Whether the file is ``data``, by content, and safe from others; and when it was written, in seconds."""
        try:
            fd = files.open(path, files.READ | _NONBLOCK)
        except FileNotFoundError:
            return _ABSENT, 0
        except OSError:
            return _WRONG, 0  # a link, or not to be read: to be replaced, which shows the error if there is one
        try:
            info = files.fstat(fd)
            written = int(info.st_mtime)
            if not stat.S_ISREG(info.st_mode) or info.st_size != len(data) or info.st_nlink != 1:
                return _WRONG, written
            if not _is_ours(info, shared=bool(self.unwritable)) or files.read_all(fd, len(data) + 1) != data:
                return _WRONG, written
            if not self.unwritable:
                self._touch(fd, info)
            return _OK, written
        except OSError as error:
            self._counters.error("read", error)
            return _WRONG, 0
        finally:
            files.close_quietly(fd)

    def _touch(self, fd: int, info: files.Status) -> None:
        """Use is recorded in the access time; the other one is what Python and linecache compare."""
        try:
            files.utime(fd, ns=(time.time_ns(), info.st_mtime_ns))
        except OSError as error:
            self._counters.error("touch", error)

    def _write(self, path: str, data: bytes, old: int) -> None:
        temporary = f"{self.root}/tmp/{files.unique_name()}"
        try:
            fd = files.open(temporary, files.CREATE, files.PRIVATE_FILE)
        except FileNotFoundError:
            files.makedirs(f"{self.root}/tmp")
            fd = files.open(temporary, files.CREATE, files.PRIVATE_FILE)
        try:
            try:
                files.write_all(fd, [data], len(data))
                now = time.time_ns()
                if now // 10**9 == old:
                    # Bytecode of what was there is known by size and second: this must look newer.
                    files.utime(fd, ns=(now, now + 2 * 10**9))
            finally:
                files.close(fd)
            self._name(temporary, path)
        except BaseException:
            _remove(temporary)
            raise

    def _name(self, temporary: str, path: str) -> None:
        try:
            files.rename(temporary, path)
        except FileNotFoundError:
            directory = os.path.dirname(path)
            files.makedirs(directory)
            try:
                files.close(files.open(f"{directory}/__pycache__", files.CREATE, files.PRIVATE_FILE))
            except FileExistsError:
                pass
            files.rename(temporary, path)

    # -- turns and room ----------------------------------------------------------------

    def _take_turn(self) -> int:
        """The lock file, locked; -1 when it is not to be had in time. Then nothing is counted or evicted."""
        path = f"{self.root}/lock"
        try:
            fd = files.open(path, files.UPDATE, files.PRIVATE_FILE)
        except FileNotFoundError:  # somebody removed the directory
            files.makedirs(self.root)
            fd = files.open(path, files.UPDATE, files.PRIVATE_FILE)
        deadline = time.monotonic() + _LOCK_WAIT
        while True:
            try:
                files.flock(fd, files.LOCK_EX | files.LOCK_NB)
                return fd
            except OSError as error:
                if isinstance(error, BlockingIOError) and time.monotonic() < deadline:
                    time.sleep(1e-3)  # flock has no time-out; a turn is a write and a rename
                    continue
                self._counters.error("lock", error)
                files.close_quietly(fd)
                return -1

    def _make_room(self, turn: int, need: int) -> bool:
        """Record ``need`` more bytes, evicting if it must; False when there is no room for them."""
        if need > self.max_size:
            self._counters.add("refused.oversize")
            return False
        text = files.pread(turn, 32, 0)
        total = int(text) if text.strip().isdigit() else -1
        if total < 0 or total + need > self.max_size:
            total = self._evict(max(0, int(self.max_size * _LOW_WATERMARK) - need))
            if total + need > self.max_size:
                self._counters.add("refused.full")
                files.pwrite(turn, b"%-31d\n" % total, 0)
                return False
        # Before the file is there: killed in between, too much is counted, and the next listing puts it right.
        files.pwrite(turn, b"%-31d\n" % (total + need), 0)
        return True

    def _evict(self, goal: int) -> int:
        """Remove what was used longest ago and is nobody's, down to ``goal`` bytes; the bytes there are then."""
        found = []
        for name, path in files.walk(self.root, 1):
            info = _status(path)
            if info is not None and name[2:] != "__pycache__":
                found.append((info.st_atime_ns, info.st_size, path))
        self._sweep()
        total = sum(size for _, size, _ in found)
        if total <= goal:
            return total
        used = leased(f"{self.root}/leases", self._counters)
        if used is None:
            return total
        for _, size, path in sorted(found):
            if total <= goal:
                break
            if _digest_in(path) not in used:
                files.unlink(path)
                total -= size
                self._counters.add("evicted")
        return total

    def _sweep(self) -> None:
        """Remove what writers that were killed left behind."""
        limit = time.time() - _ORPHAN_AGE
        for name in files.listdir(f"{self.root}/tmp") if files.access(f"{self.root}/tmp", os.F_OK) else ():
            path = f"{self.root}/tmp/{name}"
            info = _status(path)
            if info is not None and info.st_mtime < limit:
                _remove(path)

    def clear(self) -> int:
        """Remove every file that no living process uses; how many there were."""
        if self.unwritable:
            return 0
        before = self._counters.snapshot().get("evicted", 0)
        turn = -1
        try:
            turn = self._take_turn()
            if turn >= 0:
                files.pwrite(turn, b"%-31d\n" % self._evict(0), 0)
        except OSError as error:
            self._counters.error("clear", error)
        finally:
            if turn >= 0:
                files.close_quietly(turn)
        return int(self._counters.snapshot().get("evicted", 0) - before)

    def stats(self) -> dict[str, int]:
        """Files handed out as they were (``hit``), ``written``, ``replaced``, ``evicted``, ``diverted``; errors."""
        counted = self._counters.snapshot()
        names = ("hit", "written", "replaced", "evicted", "diverted")
        return {**{name: int(counted.pop(name, 0)) for name in names}, **{k: int(v) for k, v in counted.items()}}

    def __repr__(self) -> str:
        return f"<SourceCache {self.root}>"


def _described(source: str, name: str, suffix: str) -> tuple[bytes, str, str]:
    """The bytes of the file, its name without suffix, and the digest in it. Raises UsageError."""
    if not isinstance(source, str) or not isinstance(name, str) or not name:
        raise UsageError(f"source and name are strings, and a name is not empty; not {source!r:.40} and {name!r:.40}")
    if not isinstance(suffix, str) or len(suffix) > 16 or not suffix[1:].isalnum() or suffix[0] != ".":
        raise UsageError(f"a suffix looks like '.py' or '.cu', not {suffix!r}")
    try:
        data = source.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the source of {name!r:.40} cannot be written as UTF-8: {error}") from None
    if suffix == ".py" and not data.isascii():
        _check_encoding(data, name)
    digest = digest_of(encode((_LAYOUT, name, suffix, source)))[:_DIGITS]
    safe = "".join([c if c.isascii() and c.isalnum() else "_" for c in name[:_NAME]])
    return data, f"{'_' if safe[0].isdigit() else ''}{safe}_{digest}", digest


def _check_encoding(data: bytes, name: str) -> None:
    """A source that says it is in Latin-1 would be read as that, and be another program."""
    head = b"\n".join(data.split(b"\n", 2)[:2])
    if b"coding" not in head:
        return
    from io import BytesIO
    from tokenize import detect_encoding

    try:
        if detect_encoding(BytesIO(data).readline)[0] in ("utf-8", "utf-8-sig"):
            return
    except SyntaxError:
        pass
    raise UsageError(f"the source of {name!r:.40} declares another encoding than the UTF-8 it is written in")


def _status(path: str) -> files.Status | None:
    try:
        return files.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None  # removed since it was listed


def _is_ours(info: files.Status, *, shared: bool) -> bool:
    """Whether nobody else can change the file; one that is only read may also be root's."""
    if not hasattr(os, "geteuid"):
        return True  # no owners to compare on this platform
    return (info.st_uid == os.geteuid() or (shared and info.st_uid == 0)) and not info.st_mode & 0o022


def _digest_in(path: str) -> str:
    return os.path.basename(path).partition(".")[0][-_DIGITS:]


def _remove(path: str) -> None:
    try:
        files.unlink(path)
    except OSError:
        pass  # it was never made, or the disk is gone; a sweep of tmp/ finds it
