"""Shelves: files of entries, laid out for compilers that ask for paths.

Triton wants the names of files on disk and reads them itself. A shelf is a
directory with one folder per key; in a folder lie the files and, for each set of
them, a slip that says which entry they are and checks every byte:

    slip = magic "hotS", u16 version, u16 number of files, check, digest of the
           key (32), f64 cost, u32 length of title, u64 size of each file, title,
           names separated by NUL

``check`` is XXH3-128 of all of the slip that follows it and then of the files in
order. The title is what the slip was written for, so that a folder copied under
another name is not believed; no path is in it, so that a shelf can be moved. A
shelf is derived from the store: it may be deleted at any time, and whoever serves
from it makes sure that the store still has the entry.

Reading the files on every hit costs 30 µs for the seven of a Triton kernel.
Remembering their sizes and times instead was rejected: it saves half of that, and
after a power cut a file of the right size and age can be all zeros.
"""

from __future__ import annotations

import os
import struct
import time

from xxhash import xxh3_128, xxh3_128_digest

from ..store import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

_SLIP = ".hotstart."
_WITHDRAWN = ".hotstart-withdrawn."
_TEMPORARY = ".hotstart-tmp."
_SWEPT = ".hotstart-swept"

_HEAD = struct.Struct("<4sHH16s32sdI")
_HEAD_SIZE = _HEAD.size
_MAGIC, _VERSION = b"hotS", 1
_START = struct.pack("<4sH", _MAGIC, _VERSION)
_CHECKED_FROM = 24

#: Others may write into a directory that Triton was given: nothing there makes us wait, a pipe is read as empty.
_READ = files.READ | getattr(os, "O_NONBLOCK", 0)

#: Sizes of so many files.
_SIZES = [struct.Struct(f"<{count}Q") for count in range(32)]

#: What is read of a slip at first. It is some hundred bytes, and a larger buffer costs more than the read.
_FIRST_READ = 4096
_LARGEST = 1 << 20

#: No compiler's file comes near this; a size beyond it is damage, not worth the memory to find out.
_LARGEST_FILE = 1 << 32

#: What was used, written or withdrawn within this time may be in somebody's hands: it is not removed.
GRACE_NS = 600_000_000_000


class DamagedError(Exception):
    """The files are not what they should be, or the slip is none. Never leaves ``compilers/``."""


class Slip:
    """What a slip says; believed only when the files have been checked with it."""

    __slots__ = ("check", "checked", "cost", "digest", "names", "sizes", "title")

    def __init__(self, raw: bytes) -> None:
        """Raises DamagedError."""
        if len(raw) < _HEAD_SIZE or not raw.startswith(_START):
            raise DamagedError("its slip is none")
        _, _, count, self.check, digest, self.cost, length = _HEAD.unpack_from(raw)
        sizes = _SIZES[count] if count < len(_SIZES) else struct.Struct(f"<{count}Q")
        at = _HEAD_SIZE + sizes.size
        if len(raw) < at + length:
            raise DamagedError("its slip is cut off")
        self.sizes: tuple[int, ...] = sizes.unpack_from(raw, _HEAD_SIZE)
        self.digest: str = digest.hex()
        self.title = raw[at : at + length]
        #: In the order in which their contents are checked.
        self.names = raw[at + length :].decode("utf-8", "replace").split("\0")
        self.checked = raw[_CHECKED_FROM:]


#: Slips this process has read and found true, by path and title. Whoever comes again
#: for a kernel is spared reading them; the files are checked each time.
_known: dict[tuple[str, bytes], Slip] = {}


def look(folder: str, label: str, title: bytes) -> tuple[Slip, dict[str, str]] | None:
    """The files filed under ``label``: their slip and their paths by name, every byte checked.

    None when nothing is filed. Raises DamagedError.
    """
    path = f"{folder}/{_SLIP}{label}"
    slip = _known.get((path, title))
    if slip is not None:
        try:
            return slip, _check(folder, slip)
        except DamagedError:
            del _known[path, title]  # unless somebody has written other files, with a slip of their own
    try:
        fd = files.open(path, _READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedError(str(error)) from None
    try:
        raw = files.read(fd, _FIRST_READ)
        if len(raw) == _FIRST_READ:
            raw += files.read(fd, _LARGEST)
    except OSError as error:
        raise DamagedError(str(error)) from None
    finally:
        files.close(fd)
    slip = Slip(raw)
    if slip.title != title:
        raise DamagedError("filed under another name")
    paths = _check(folder, slip)
    _known[path, title] = slip
    return slip, paths


def _check(folder: str, slip: Slip) -> dict[str, str]:
    """The paths of the files, whose contents are what the slip says. Raises DamagedError."""
    open_, read, close, flags = files.open, files.read, files.close, _READ
    prefix = folder + "/"
    update = (running := xxh3_128(slip.checked)).update
    paths = {}
    try:
        for name, size in zip(slip.names, slip.sizes, strict=True):
            if size > _LARGEST_FILE:
                raise DamagedError("its slip is damaged")
            path = paths[name] = prefix + name
            fd = open_(path, flags)
            try:
                data = read(fd, size + 1)
            finally:
                close(fd)
            if len(data) != size:
                raise DamagedError(f"{name} has the wrong size")
            update(data)
    except (OSError, ValueError, MemoryError) as error:
        raise DamagedError(str(error)) from None
    if running.digest() != slip.check:
        raise DamagedError("the checksum does not match")
    return paths


def is_flat(name: str) -> bool:
    """Whether a file of this name can lie in a folder, and not be taken for one of ours."""
    return bool(name) and "/" not in name and "\\" not in name and "\0" not in name and not name.startswith(".")


def write(folder: str, name: str, data: bytes) -> str:
    """One file, whole or not at all, over what was there. Its path. Raises OSError."""
    temporary = f"{folder}/{_TEMPORARY}{files.unique_name()}"
    try:
        fd = files.open(temporary, files.CREATE, files.PRIVATE_FILE)
    except FileNotFoundError:
        files.makedirs(folder)
        fd = files.open(temporary, files.CREATE, files.PRIVATE_FILE)
    path = f"{folder}/{name}"
    try:
        try:
            files.write_all(fd, [data], len(data))
        finally:
            files.close(fd)
        # Never in place: another process may have the old file mapped.
        files.rename(temporary, path)
    except BaseException:
        _unlink(temporary)
        raise
    return path


def fill(
    folder: str,
    label: str,
    title: bytes,
    digest: str,
    cost: float,
    contents: Mapping[str, bytes],
    there: Collection[str] = (),
) -> str:
    """Write the files that are not ``there`` yet, then their slip; its path.

    Raises OSError, and DamagedError for a name that would leave the folder.
    """
    for name, data in contents.items():
        if not is_flat(name):
            raise DamagedError(f"{name!r} is no name for a file here")
        if name not in there:
            write(folder, name, data)
    head = _HEAD.pack(_MAGIC, _VERSION, len(contents), b"", bytes.fromhex(digest), cost, len(title))
    sizes = struct.pack(f"<{len(contents)}Q", *map(len, contents.values()))
    checked = b"".join((head[_CHECKED_FROM:], sizes, title, "\0".join(contents).encode()))
    check = xxh3_128_digest(b"".join((checked, *contents.values())))
    return write(folder, _SLIP + label, b"".join((head[:8], check, checked)))


def is_due(shelf: str) -> bool:
    """Whether nobody has swept this shelf for a while; whoever is told so is the one to do it."""
    path = f"{shelf}/{_SWEPT}"
    try:
        if time.time_ns() - files.stat(path).st_mtime_ns < GRACE_NS:
            return False
    except OSError:
        pass  # never swept
    try:
        write(shelf, _SWEPT, b"")
    except OSError:
        return False
    return True


def sweep(shelf: str, limit: int, last_use: Callable[[str], int | None], *, whole: bool) -> int:
    """Withdraw what the store no longer has, then what was used longest ago until ``limit`` bytes are left.

    What is withdrawn is found by nobody; the files go with a later sweep, because a
    reader who found them just before has yet to read them. ``last_use`` gives, for the
    digest of an entry, the nanosecond of its last use, None when the store has no
    such entry. In a directory that is not ours alone (``whole`` is False) only files
    that a slip names are touched. Returns how many sets were withdrawn.
    """
    recent = time.time_ns() - GRACE_NS
    total = 0
    candidates = []
    for folder in _folders(shelf):
        used, changed = 0, _changed(folder)
        for label, slip, written in _slips(folder, recent):
            entry = last_use(slip.digest)
            used = max(written, entry or 0, 1)
            total += sum(slip.sizes)
            if used < recent:
                candidates.append((entry is not None, used, folder, label, slip))
        if whole and not used and changed < recent:
            _remove_tree(folder)  # a compile that was killed
    withdrawn = 0
    for alive, _, folder, label, slip in sorted(candidates, key=lambda item: item[:2]):
        if alive and total <= limit:
            break
        try:
            files.rename(f"{folder}/{_SLIP}{label}", f"{folder}/{_WITHDRAWN}{label}")
            files.utime(f"{folder}/{_WITHDRAWN}{label}")
        except OSError:
            continue  # somebody else sweeps as well
        total -= sum(slip.sizes)
        withdrawn += 1
    return withdrawn


def _folders(shelf: str) -> list[str]:
    try:
        with files.scandir(shelf) as items:
            return [item.path for item in items if not item.name.startswith(".") and item.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _slips(folder: str, recent: int) -> Iterator[tuple[str, Slip, int]]:
    """Label, content and time of each slip; what was withdrawn long ago, or left by killed writers, is removed."""
    try:
        names = [name for name in files.listdir(folder) if name.startswith(".hotstart")]
    except OSError:
        return
    for name in names:
        path = f"{folder}/{name}"
        try:
            written = files.stat(path, follow_symlinks=False).st_mtime_ns
            if name.startswith(_SLIP):
                yield name.removeprefix(_SLIP), _read_slip(path), written
            elif written < recent:
                if name.startswith(_WITHDRAWN) and _SLIP + name.removeprefix(_WITHDRAWN) not in names:
                    for member in filter(is_flat, _read_slip(path).names):
                        _unlink(f"{folder}/{member}")
                _unlink(path)
        except (OSError, DamagedError):
            continue  # gone, or damaged: its files are found damaged when they are asked for
    try:
        os.rmdir(folder)
    except OSError:
        pass  # the usual case: something is in it


def _read_slip(path: str) -> Slip:
    fd = files.open(path, _READ)
    try:
        return Slip(files.read(fd, _LARGEST))
    finally:
        files.close(fd)


def _changed(path: str) -> int:
    try:
        return files.stat(path).st_mtime_ns
    except OSError:
        return time.time_ns()


def _unlink(path: str) -> None:
    try:
        files.unlink(path)
    except OSError:
        pass  # gone already, or it stays and is found by the next sweep


def _remove_tree(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)
