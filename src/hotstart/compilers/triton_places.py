"""Where Triton's managers keep things: the store behind them, the shelves in front."""

from __future__ import annotations

import atexit
import os
from _thread import allocate_lock
from time import time_ns

from ..errors import HotstartError
from ..log import say
from . import shelf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Iterator
    from typing import Any

    from ..cache import Cache
    from ..config import Config

#: The shelves hold at most this share of the store's budget, besides what was used in the last minutes.
_SHARE = 4

#: Uses are told so many together, and at exit: writing the time of a file costs 70 µs amid a compile, 13 each in a row
#: of eight, 8 in one of 32. A process that is killed has used some of its last kernels in secret.
_TOGETHER = 32

#: Entries without a store that a process remembers to have compiled.
_KEPT = 4096

#: The use of one entry is told at most this often.
_TELL_EVERY = 60_000_000_000

_user = getattr(os, "geteuid", lambda: 0)


class Places:
    """One store and its shelves. The store is opened when a shelf cannot answer: a hit does without.

    Made of an open ``cache`` or, with ``root`` for what is known beforehand, of a
    configuration that describes one.
    """

    __slots__ = (
        "_cache",
        "_config",
        "_kept",
        "_knobs",
        "_lock",
        "_own",
        "_scratch",
        "_told",
        "_uses",
        "_written",
        "hits",
        "read_only",
        "root",
        "saved",
    )

    def __init__(self, *, cache: Cache | None = None, config: Config | None = None, root: str | None = None) -> None:
        from triton import knobs

        self._config = config
        self._cache: Cache | None = None
        self._knobs: dict[str, Any] = vars(knobs.cache)
        #: Directory of the store; None for one in memory alone.
        self.root = root
        self.read_only = bool(config["read_only"]) if config is not None else False
        #: Whether a directory that was named to us is ours; looked at once.
        self._own: dict[str, bool] = {}
        #: Files of entries that were used, with the nanosecond and the seconds saved; and when each was told of last.
        self._uses: list[tuple[str, int, float]] = []
        self._told: dict[str, int] = {}
        self._scratch: tuple[int, str] = (0, "")
        #: Entries of this process that the store did not take: their files serve this process alone.
        self._kept: dict[str, None] = {}
        self._written = 0
        #: Served from a shelf, and the seconds of compiling that saved; beside the counters, for speed.
        self.hits, self.saved = 0, 0.0
        self._lock: LockType = allocate_lock()
        if cache is not None:
            self._adopt(cache)
        atexit.register(self.tell)

    @property
    def cache(self) -> Cache:
        if self._cache is None and self._config is not None:
            try:
                self._adopt(self._config.open(memory=0))
            except HotstartError as error:
                say("warning", f"Triton's kernels are not stored: {error}", once="triton store")
                self._adopt(_nothing())
        assert self._cache is not None
        return self._cache

    def _adopt(self, cache: Cache) -> None:
        disk = cache.disk
        self.root = disk.root if disk is not None and not disk.unreadable else None
        self.read_only = disk is None or bool(disk.unwritable)
        self._cache = cache

    def use(self, digest: str, cost: float) -> bool:
        """Whether the store has this entry; if so it is noted as used, which saved ``cost`` seconds.

        The layout of the store is written out here, as ``LocalStore.path`` has it,
        because opening a store costs more than all that a hit does.
        """
        path = f"{self.root}/entries/{digest[:2]}/{digest[2:]}"
        if self.root is None or not os.access(path, os.F_OK):
            if digest not in self._kept:
                return False
            with self._lock:
                self.hits += 1
                self.saved += cost
            return True
        with self._lock:
            self._uses.append((path, time_ns(), cost))
            enough = len(self._uses) >= _TOGETHER
        if enough:
            self.tell()
        return True

    def keep(self, digest: str) -> None:
        """The store did not take this entry (read-only, full, none): what was laid down of it still counts here."""
        with self._lock:
            self._kept[digest] = None
            if len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]

    def tell(self) -> None:
        """Make noted uses known: to the store as the time of each entry's file, to ``stats`` as hits."""
        with self._lock:
            uses, self._uses = self._uses, []
            self.hits += len(uses)
            self.saved += sum(cost for _, _, cost in uses)
            late = {path: now for path, now, _ in uses if now - self._told.get(path, 0) > _TELL_EVERY}
            self._told.update(late)
        if not self.read_only:
            for path, now in late.items():
                try:
                    if os.stat(path).st_mtime_ns < now:  # or somebody else has used it since
                        os.utime(path, ns=(now, now))
                except OSError:
                    continue  # evicted since, or mounted read-only: there is nothing to keep it for

    def after_fork(self) -> None:
        """In a child: nothing was used yet, and a thread that is gone may have held the lock."""
        self.hits, self.saved, self._uses, self._lock = 0, 0.0, [], allocate_lock()

    # -- shelves -------------------------------------------------------------------

    def readable(self) -> list[str]:
        """Where files are looked for: Triton's directory if somebody chose one, else beside the store."""
        path = self._knobs.get("dir") or os.environ.get("TRITON_CACHE_DIR")
        place = path if path and self._own.get(path) else (self._chosen() or self._beside())
        if self._scratch[1] and self._scratch[0] == os.getpid():
            return [place, self._scratch[1]] if place else [self._scratch[1]]
        return [place] if place else []

    def writable(self, executable: bool) -> Iterator[str]:
        """Where files may be laid down, best first; ``executable`` for those that will be loaded as code."""
        places = [self._chosen(), "" if self.read_only else self._beside()]
        for place in places:
            if place and not (executable and _is_noexec(place)):
                yield place
        try:
            place = self._temporary()
        except OSError as error:
            say("warning", f"Triton's kernels have no place left to lie in: {error}", once="triton nowhere")
            return
        yield place

    def _chosen(self) -> str:
        path = self._knobs.get("dir") or os.environ.get("TRITON_CACHE_DIR")
        if not path:
            return ""
        known = self._own.get(path)
        if known is None:
            try:
                info = os.stat(path)
            except FileNotFoundError:
                return str(path)  # it will be made, and be ours
            except OSError:
                return ""
            # Triton would load code from it whoever wrote that. A group may write: where
            # umask is 002 every directory is so, and the group the user's own.
            known = self._own[path] = info.st_uid == _user() and not info.st_mode & 0o002
            if not known:
                say("info", f"{path} belongs to others or all may write there; not used for kernels", once=str(path))
        return str(path) if known else ""

    def _beside(self) -> str:
        return f"{self.root}/triton" if self.root is not None else ""

    def _temporary(self) -> str:
        """A directory for this process alone, for what can be written nowhere else."""
        pid = os.getpid()
        if self._scratch[0] != pid:
            from .private import private_directory

            self._scratch = pid, f"{private_directory()}/triton"
        return self._scratch[1]

    def sweep(self, place: str, written: int) -> None:
        """After something was laid down: keep the shelf within its bounds, now and then."""
        self._written += written
        disk = self.cache.disk
        if disk is None or self.read_only or place == self._scratch[1]:
            return
        limit = disk.max_size // _SHARE
        if self._written < limit // 8 and not shelf.is_due(place):
            return
        self._written = 0

        def last_use(digest: str) -> int | None:
            try:
                return os.stat(disk.path(digest)).st_mtime_ns
            except OSError:
                return None

        shelf.sweep(place, limit, last_use, whole=place == self._beside())


def configured() -> tuple[Places | None, str]:
    """The places that ``HOTSTART_*`` and the files describe; or None, and why if nobody asked for that."""
    from ..config import home_directory, load

    try:
        config = load()
        if config["disable"]:
            return None, ""
        root = f"{home_directory(config['home'])}/store"
        if _is_settled(root) and not config["under"]:
            return Places(config=config, root=root), ""
        return Places(cache=config.open(memory=0)), ""
    except HotstartError as error:
        return None, str(error)


def _is_settled(root: str) -> bool:
    """Whether opening a store here would find one, ours, and use it as it is."""
    try:
        info = os.stat(root)
        return info.st_uid == _user() and not info.st_mode & 0o022 and os.access(f"{root}/format", os.F_OK)
    except OSError:
        return False


def _is_noexec(path: str) -> bool:
    """Whether a library could not be loaded from here."""
    while path and not os.path.isdir(path):
        path = os.path.dirname(path)
    try:
        return bool(os.statvfs(path).f_flag & getattr(os, "ST_NOEXEC", 0))
    except OSError:
        return False


def _nothing() -> Cache:
    from ..cache import Cache

    return Cache(None, memory=0)
