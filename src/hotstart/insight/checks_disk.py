"""Checks of the place: which file system the home lies on, and whether it can be written, run from and trusted."""

from __future__ import annotations

import os
import stat
import time

from ..store import files
from .doctor import ERROR, NOTE, WARNING, Finding
from .words import duration, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .doctor import Patient

#: File systems in memory: gone with the machine.
_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs", "rootfs"))

#: File systems of other machines: slow to look things up, and locks may mean nothing.
_NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "virtiofs")
)

_ELSEWHERE = "put it on a local disk: export HOTSTART_HOME=/path/on/local/disk"

_MIB = 1 << 20


class Mount:
    """The mount a path lies on: its place, its type, its options."""

    __slots__ = ("options", "place", "type")

    def __init__(self, place: str, type: str, options: frozenset[str]) -> None:
        self.place = place
        self.type = type
        self.options = options


def mount_of(path: str, table: str = "/proc/self/mountinfo") -> Mount | None:
    """The mount under ``path``; None where the kernel does not tell."""
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
    except OSError:
        return None
    path = os.path.realpath(path)
    best: Mount | None = None
    for line in lines:
        words = line.split()
        if "-" not in words[5:]:
            continue
        dash = words.index("-", 5)
        place = _unescaped(words[4])
        # Of mounts at one place the last hides those before it.
        if _is_within(path, place) and (best is None or len(place) >= len(best.place)):
            best = Mount(place, words[dash + 1], frozenset(words[5].split(",")))
    return best


def _is_within(path: str, place: str) -> bool:
    return place == "/" or path == place or path.startswith(place + "/")


def _unescaped(text: str) -> str:
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, sign)
    return text


def home(patient: Patient) -> Iterator[Finding]:
    """Whether there is a home at all, and one that lasts."""
    temporary = (patient.environ.get("TMPDIR") or "/tmp").rstrip("/")
    if not os.path.lexists(patient.home):
        in_the_way = next((path for path in _above(patient.home) if os.path.lexists(path)), "/")
        if not os.path.isdir(in_the_way) or not os.access(patient.ground, os.W_OK | os.X_OK):
            yield Finding(
                ERROR,
                f"{patient.home} does not exist and cannot be made in {in_the_way}",
                "choose a directory that you may write: export HOTSTART_HOME=/path/of/yours",
            )
        return
    if not os.path.isdir(patient.home):
        yield Finding(ERROR, f"{patient.home} is not a directory", "move it away, or set HOTSTART_HOME")
    elif _is_within(os.path.realpath(patient.home), os.path.realpath(temporary)):
        yield Finding(
            WARNING,
            f"{patient.home} is under {temporary}, which is emptied from time to time",
            "choose a lasting place: export HOTSTART_HOME=~/.cache/hotstart",
        )


def _above(path: str) -> Iterator[str]:
    """The directories that would hold it, nearest first."""
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent


def permissions(patient: Patient) -> Iterator[Finding]:
    """Ours, writable by us, and by nobody else: what is in there gets run."""
    for path in (patient.home, patient.store, patient.root):
        try:
            info = os.stat(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Finding(ERROR, f"{path}: {error.strerror}", f"make it yours: chown -R $USER {path!r}")
            continue
        if not stat.S_ISDIR(info.st_mode):
            continue
        if hasattr(os, "geteuid") and info.st_uid != os.geteuid():
            yield Finding(ERROR, f"{path} belongs to user {info.st_uid}", f"make it yours: chown -R $USER {path!r}")
        elif info.st_mode & 0o022:
            # What lies inside is looked at again before anything is run from it; the home itself is not.
            level = WARNING if path == patient.home else ERROR
            yield Finding(level, f"{path} can be written by others, and what is in it gets run", f"chmod go-w {path!r}")
        elif not os.access(path, os.W_OK | os.X_OK):
            yield Finding(
                ERROR,
                f"{path} cannot be written",
                f"chmod u+rwx {path!r}, or set HOTSTART_READ_ONLY=1 if that is meant",
            )


def file_system(patient: Patient) -> Iterator[Finding]:
    """In memory, over a network, in a container's own layer, or on a disk."""
    mount = mount_of(patient.ground)
    if mount is None:
        return
    if mount.type in _MEMORY:
        yield Finding(
            WARNING,
            f"{patient.home} is on {mount.type}: it is gone after a reboot, and takes memory from your programs",
            _ELSEWHERE,
        )
    elif mount.type in _NETWORK or (mount.type.startswith("fuse") and mount.type != "fuseblk"):
        yield Finding(
            WARNING,
            f"{patient.home} is on {mount.type}: every look-up crosses the network, and locks may not hold",
            f"{_ELSEWHERE}; to share between machines use a remote",
        )
    elif mount.type == "overlay":
        yield Finding(
            NOTE,
            f"{patient.home} is in this container's own layer and goes with it",
            "mount a volume there and set HOTSTART_HOME to it; see docs/containers.md",
        )
    if "ro" in mount.options:
        yield Finding(
            ERROR,
            f"{mount.place} is mounted read-only: nothing can be kept",
            "set HOTSTART_HOME to a writable place and name this one in HOTSTART_UNDER",
        )
    if "noatime" in mount.options:
        yield Finding(
            NOTE,
            f"{mount.place} is mounted noatime: which units a program used cannot be seen, so hits are not counted",
            f"mount -o remount,relatime {mount.place}",
        )


def executable(patient: Patient) -> Iterator[Finding]:
    """Compiled code is loaded from there: a file system that forbids it makes every hit fail."""
    try:
        flags = os.statvfs(patient.ground).f_flag
    except (OSError, AttributeError):
        return
    if flags & getattr(os, "ST_NOEXEC", 8):
        mount = mount_of(patient.ground)
        place = mount.place if mount is not None else patient.ground
        yield Finding(
            ERROR,
            f"{place} is mounted noexec: shared objects in {patient.home} cannot be loaded",
            f"{_ELSEWHERE}, or mount -o remount,exec {place}",
        )


def space(patient: Patient) -> Iterator[Finding]:
    """Room for what will be compiled, and for the budget that was set."""
    try:
        info = os.statvfs(patient.ground)
    except (OSError, AttributeError):
        return
    free, total = info.f_bavail * info.f_frsize, info.f_blocks * info.f_frsize
    if free < 16 * _MIB:
        yield Finding(
            ERROR,
            f"no space: {size(free)} left for {patient.home}",
            "make room, or choose another disk with HOTSTART_HOME; hotstart gc --max-size 1GiB gives some back",
        )
    elif free < 1024 * _MIB:
        yield Finding(
            WARNING, f"little space: {size(free)} left for {patient.home}", "make room, or lower HOTSTART_MAX_SIZE"
        )
    if patient.budget > total > 0:
        yield Finding(
            WARNING,
            f"the budget of {size(patient.budget)} is more than the whole file system has ({size(total)})",
            f"set HOTSTART_MAX_SIZE below that, for example {max(1, total // 2 // _MIB)}MiB",
        )


def inodes(patient: Patient) -> Iterator[Finding]:
    """Caches are many small files."""
    try:
        info = os.statvfs(patient.ground)
    except (OSError, AttributeError):
        return
    if info.f_files == 0:
        return  # made as they are needed
    if info.f_favail < 100:
        yield Finding(
            ERROR, f"no inodes: {info.f_favail} files more can be made for {patient.home}", "remove small files there"
        )
    elif info.f_favail < 20_000:
        yield Finding(
            WARNING,
            f"few inodes: {info.f_favail:,} files more can be made for {patient.home}",
            "remove small files there, or choose another disk with HOTSTART_HOME",
        )


def clock(patient: Patient) -> Iterator[Finding]:
    """The times of files against this machine's clock: a server's may differ."""
    if not os.access(patient.ground, os.W_OK | os.X_OK):
        return  # said by another check
    path = f"{patient.ground}/.{files.unique_name()}"
    try:
        fd = files.open(path, files.CREATE, files.PRIVATE_FILE)
    except OSError as error:
        yield Finding(
            ERROR, f"{patient.ground} takes no file: {error.strerror}", "hotstart doctor names the cause above"
        )
        return
    try:
        now = time.time()
        info = files.fstat(fd)
    finally:
        files.close(fd)
        files.unlink(path)
    yield from skew(info.st_mtime - now, patient.home)


def skew(seconds: float, where: str) -> Iterator[Finding]:
    """What to say of a clock that is so far ahead."""
    if abs(seconds) > 2.0:
        way = "ahead of" if seconds > 0 else "behind"
        yield Finding(
            WARNING,
            f"the clock of the file system under {where} is {duration(abs(seconds))} {way} this machine's",
            "set both by NTP: what was used last is judged by these times",
        )
