"""Scopes and the list of keys trusted for them.

A scope names a group of writers (``main``, ``pr-123``) and is part of every object's
name, so that a bucket policy can say who writes where. The list is a text file, one
key a line, strongest reader of all: whoever may write it decides what runs here.

    # key                                              scopes          name
    ed25519:o4Ue…                                      main,release    ci
    ed25519:Jx0k…                                      pr-*            pull requests
    revoked ed25519:9dQz…                                              old ci
"""

from __future__ import annotations

import os
import stat

from ..errors import UsageError
from ..log import say
from ..store import files
from .signing import PublicKey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")
_MAX_SCOPE = 64
_LARGEST_FILE = 1 << 20
_HEADING = "# Keys whose entries hotstart runs on this machine: key, scopes, name. See docs/security.md.\n"


def check_scope(name: str) -> str:
    """Raises UsageError for what is not one part of a path of small letters, digits, '.', '_' and '-'."""
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_SCOPE or not _LETTERS.issuperset(name) or name[0] in ".-":
        raise UsageError(
            f"a scope is 1 to {_MAX_SCOPE} of a-z, 0-9, '.', '_', '-', the first not '.' or '-': not {name!r}"
        )
    return name


def check_pattern(pattern: str) -> str:
    """A scope, or the beginning of some followed by ``*``."""
    if pattern != "*":
        check_scope(pattern.removesuffix("*"))
    return pattern


def parse_scopes(setting: str) -> list[str]:
    """``HOTSTART_SCOPE``: the scope to write, then others to read. Raises UsageError."""
    scopes = [check_scope(part.strip()) for part in setting.split(",")]
    return list(dict.fromkeys(scopes))


class Trusted:
    """One line of the list."""

    __slots__ = ("key", "name", "revoked", "scopes")

    def __init__(self, key: PublicKey, scopes: tuple[str, ...], name: str, revoked: bool = False) -> None:
        self.key = key
        self.scopes = scopes
        self.name = name
        self.revoked = revoked

    def covers(self, scope: str) -> bool:
        return not self.revoked and any(
            scope == pattern or (pattern.endswith("*") and scope.startswith(pattern[:-1])) for pattern in self.scopes
        )

    def line(self) -> str:
        if self.revoked:
            return f"revoked {self.key} {self.name}".rstrip() + "\n"
        return f"{self.key} {','.join(self.scopes)} {self.name}".rstrip() + "\n"


class TrustList:
    """Who is trusted for what, by the id of the key. Changed by making a new file in place of the old."""

    def __init__(self, path: str, trusted: Iterable[Trusted] = ()) -> None:
        self.path = path
        self._by_id: dict[str, Trusted] = {}
        for entry in trusted:
            known = self._by_id.get(entry.key.id)
            if known is None or not known.revoked:  # a key that was revoked stays so, wherever else it stands
                self._by_id[entry.key.id] = entry
        #: What its file looked like when it was read; None for a list that is none's.
        self._seen: tuple[int, ...] | None = None

    @classmethod
    def load(cls, path: str) -> TrustList:
        """An absent file is an empty list. Raises UsageError naming file and line, or who else could write it."""
        try:
            fd = files.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            return cls(path)._as_seen(None)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}; nobody is trusted") from None
        try:
            info = files.fstat(fd)
            data = files.read_all(fd, min(info.st_size, _LARGEST_FILE + 1))
        finally:
            files.close_quietly(fd)
        if hasattr(os, "geteuid") and (info.st_mode & 0o022 or info.st_uid not in (os.geteuid(), 0)):
            raise UsageError(f"{path} can be written by others: chmod 644 it; until then nobody is trusted")
        if not stat.S_ISREG(info.st_mode) or len(data) > _LARGEST_FILE:
            raise UsageError(f"{path} is not a list of keys")
        return cls(path, _parse(path, data))._as_seen(info)

    def _as_seen(self, info: os.stat_result | None) -> TrustList:
        self._seen = _look(info)
        return self

    def current(self) -> TrustList:
        """Itself, or the list that is in its file since that has changed; then one that makes no sense trusts nobody.

        One ``stat`` as long as nothing changes.
        """
        if self._seen is None or not self.path:
            return self
        try:
            info = files.stat(self.path)
        except OSError:
            info = None
        if _look(info) == self._seen:
            return self
        try:
            return TrustList.load(self.path)
        except UsageError as error:
            say("warning", str(error), once=f"trust list {info.st_mtime_ns if info is not None else 0}")
            return TrustList(self.path)._as_seen(info)

    def find(self, key_id: str) -> Trusted | None:
        return self._by_id.get(key_id)

    def __iter__(self) -> Iterator[Trusted]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return sum(not entry.revoked for entry in self._by_id.values())

    def add(self, key: PublicKey, scopes: Iterable[str], name: str = "") -> None:
        """Trust ``key`` for these scopes as well. Raises UsageError for one that was revoked."""
        wanted = tuple(check_pattern(scope) for scope in scopes)
        if not wanted:
            raise UsageError("say for which scopes the key is trusted: main, or pr-*")
        if not name.isprintable() or len(name) > 100:
            raise UsageError("the name of a key is one short line")
        with _Changing(self.path):
            self._by_id = TrustList.load(self.path)._by_id
            known = self._by_id.get(key.id)
            if known is not None and known.revoked:
                raise UsageError(f"key {key.id} was revoked; delete its line in {self.path} if that was a mistake")
            before = known.scopes if known is not None else ()
            name = name or (known.name if known is not None else "")
            self._write(Trusted(key, tuple(dict.fromkeys((*before, *wanted))), name))

    def revoke(self, key_id: str) -> Trusted:
        """Trust it no more, and remember that. Raises UsageError when it is not known, or not exactly one is."""
        with _Changing(self.path):
            self._by_id = TrustList.load(self.path)._by_id
            found = [entry for known, entry in self._by_id.items() if key_id and known.startswith(key_id)]
            if len(found) != 1:
                raise UsageError(f"{len(found) or 'no'} keys begin with {key_id!r}; `hotstart trust list` shows them")
            revoked = Trusted(found[0].key, (), found[0].name, revoked=True)
            self._write(revoked)
            return revoked

    def _write(self, changed: Trusted) -> None:
        """The file with this line in the place of those of its key, and all else as people wrote it."""
        self._by_id[changed.key.id] = changed
        try:
            with open(self.path, encoding="utf-8", errors="surrogateescape", newline="") as file:
                lines = file.read().splitlines(keepends=True)
            mode = files.stat(self.path).st_mode & 0o755  # a list that all may read stays one
        except FileNotFoundError:
            lines, mode = [_HEADING], files.PRIVATE_FILE
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror}") from None
        kept = []
        waiting: str | None = changed.line()
        for line in lines:
            if str(changed.key) not in line.split() or line.lstrip().startswith("#"):
                kept.append(line if line.endswith("\n") else line + "\n")
            elif waiting is not None:
                kept.append(waiting)
                waiting = None
        if waiting is not None:
            kept.append(waiting)
        self._save("".join(kept).encode("utf-8", "surrogateescape"), mode)

    def _save(self, data: bytes, mode: int) -> None:
        directory = os.path.dirname(os.path.abspath(self.path))
        temporary = f"{directory}/.{files.unique_name()}"
        try:
            fd = files.open(temporary, files.CREATE, files.PRIVATE_FILE)
            try:
                files.write_all(fd, [data], len(data))
                os.fchmod(fd, mode)
                files.fsync(fd)
            finally:
                files.close(fd)
            files.rename(temporary, self.path)
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror}") from None


class _Changing:
    """One at a time: of two that change the list at once, the second must not undo a revocation by the first."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> None:
        try:
            import fcntl
        except ImportError:
            fcntl = None  # type: ignore[assignment]
        try:
            files.makedirs(os.path.dirname(os.path.abspath(self._path)))
            self._fd = files.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, files.PRIVATE_FILE)
            if fcntl is not None:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError as error:
            raise UsageError(f"{self._path}: {error.strerror}") from None

    def __exit__(self, *_: object) -> None:
        files.close_quietly(self._fd)


def _look(info: os.stat_result | None) -> tuple[int, ...]:
    return (info.st_ino, info.st_size, info.st_mtime_ns, info.st_mode) if info is not None else ()


def _parse(path: str, data: bytes) -> list[Trusted]:
    found = []
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        text = line.strip()
        if not text or text.startswith("#"):  # further on it may be part of a name
            continue
        words = text.split()
        try:
            if words[0] == "revoked":
                found.append(Trusted(PublicKey.parse(words[1]), (), " ".join(words[2:]), revoked=True))
            else:
                scopes = tuple(check_pattern(scope) for scope in words[1].split(","))
                found.append(Trusted(PublicKey.parse(words[0]), scopes, " ".join(words[2:])))
        except (UsageError, IndexError) as error:
            said = str(error) if isinstance(error, UsageError) else "a line is: key, scopes, name"
            raise UsageError(f"{path}, line {number}: {said}; nobody is trusted until this is mended") from None
    return found
