"""Redis and Valkey as a remote: quick, small values; what is larger belongs in an object store behind it.

A value begins with sixteen random bytes, its version: that is what ``replaces`` is
compared with, without reading the rest and without a script on the server.
"""

from __future__ import annotations

import os
import time

from .contract import (
    DEFAULT_TIMEOUT,
    AbsentError,
    BrokenError,
    Found,
    Item,
    RefusedError,
    Remote,
    RemoteError,
    TimedOutError,
    as_remote_error,
    check_name,
    progress,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, NoReturn

    from .contract import Bytes

    Answers = list[Any]
    Keys = list[bytes]

_VERSION = 16

#: Larger values make a server that serves everybody stutter.
DEFAULT_MAX_VALUE = 8 << 20

#: How replies of the server begin → the word they are counted under.
_REFUSALS = {
    "OOM": "full",
    "MISCONF": "full",
    "NOPERM": "denied",
    "READONLY": "denied",
    "NOAUTH": "credentials",
    "WRONGPASS": "credentials",
}


class Redis(Remote):
    """Keys ``PREFIX:NAME`` in one database. ``url`` may hold a password, which nothing here prints.

    ``ttl`` in seconds lets the server forget what was written that long ago.
    Nothing is imported or sent before the first call.
    """

    def __init__(
        self,
        url: str,
        shown: str,
        *,
        prefix: str = "hotstart",
        read_only: bool = False,
        max_value: int = DEFAULT_MAX_VALUE,
        ttl: int = 0,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.shown = shown
        self.read_only = read_only
        self.max_value = max_value
        self._url = url
        self._prefix = f"{prefix}:"
        self._ttl = ttl
        self.timeout = timeout
        self._client: Any = None

    #: Meant for what is small and quick: one that is slower than this is slower than the compiler.
    slowest = 1 << 20

    def prepare(self) -> None:
        self._open()

    def get(self, name: str, limit: int) -> Found:
        key = self._key(name)
        pipeline = self._pipeline()
        pipeline.strlen(key)  # first: how long it is says how long to wait for it
        pipeline.getrange(key, 0, _VERSION + limit - 1)
        size, data = self._run(pipeline)
        return self._found(name, data, size, limit)

    def _found(self, name: str, data: Any, size: Any, limit: int) -> Found:
        if not isinstance(data, bytes) or not isinstance(size, int):
            raise BrokenError(f"{self.shown}: an answer that makes no sense", "nonsense")
        if size < _VERSION:
            raise AbsentError(f"{self.shown}: no such object")
        if len(data) != min(size, _VERSION + limit):
            raise BrokenError(f"{self.shown}: {name} was replaced while it was read", "replaced")
        return Found(memoryview(data)[_VERSION:], size - _VERSION, data[:_VERSION].hex())

    def get_many(self, names: Iterable[str], limit: int) -> dict[str, Found]:
        asked = list(names)
        if not asked:
            return {}
        pipeline = self._pipeline()
        for name in asked:
            key = self._key(name)
            pipeline.strlen(key)
            pipeline.getrange(key, 0, _VERSION + limit - 1)
        answers = self._run(pipeline)
        found = {}
        for number, name in enumerate(asked):
            try:
                found[name] = self._found(name, answers[2 * number + 1], answers[2 * number], limit)
            except AbsentError:
                continue
        return found

    def get_range(self, name: str, start: int, length: int, tag: str = "") -> Bytes:
        key = self._key(name)
        pipeline = self._pipeline()
        pipeline.getrange(key, 0, _VERSION - 1)
        pipeline.getrange(key, _VERSION + start, _VERSION + start + length - 1)
        progress(length)
        version, data = self._run(pipeline)
        if not version:
            raise AbsentError(f"{self.shown}: no such object")
        if tag and version.hex() != tag:
            raise BrokenError(f"{self.shown}: {name} was replaced while it was read", "replaced")
        if len(data) != length:
            raise BrokenError(f"{self.shown}: {name} is shorter than it should be", "truncated")
        return data  # type: ignore[no-any-return]

    def put(self, name: str, data: Bytes, *, replaces: str = "") -> bool:
        key = self._key(name)
        self._check_writable()
        if self.max_value is not None and len(data) > self.max_value:
            raise RefusedError(f"{self.shown}: {len(data)} bytes are more than its max_value", "oversize")
        value = os.urandom(_VERSION) + bytes(data)
        client = self._open()
        self.requests += 1
        progress(len(value))
        try:
            if replaces:
                return self._replace(client, key, value, replaces)
            return bool(client.set(key, value, nx=True, ex=self._ttl or None))
        except Exception as error:
            self._fail(error)

    def _replace(self, client: Any, key: str, value: bytes, tag: str) -> bool:
        import redis

        with client.pipeline() as pipeline:
            pipeline.watch(key)
            if pipeline.getrange(key, 0, _VERSION - 1).hex() != tag:
                return False
            pipeline.multi()
            pipeline.set(key, value, ex=self._ttl or None)
            try:
                pipeline.execute()
            except redis.WatchError:
                return False
        return True

    def delete(self, names: Iterable[str]) -> None:
        keys = [self._key(name) for name in names]
        self._check_writable()
        if not keys:
            return
        client = self._open()
        self.requests += 1
        try:
            client.unlink(*keys)
        except Exception as error:
            self._fail(error)

    def list(self, prefix: str) -> Iterator[Item]:
        if prefix:
            check_name(prefix.rstrip("/"))
        client = self._open()
        cursor, seen = 0, set()
        while True:
            self.requests += 1
            try:
                cursor, keys = client.scan(cursor, match=f"{self._prefix}{prefix}*", count=1000)
            except Exception as error:
                self._fail(error)
            fresh = [key for key in keys if key not in seen]  # a scan may return a key twice
            seen.update(fresh)
            yield from self._describe(fresh)
            if not cursor:
                return

    def _describe(self, keys: Keys) -> Iterator[Item]:
        if not keys:
            return
        pipeline = self._pipeline()
        for key in keys:
            pipeline.strlen(key)
            pipeline.object("idletime", key)
        answers = self._run(pipeline, raise_on_error=False)
        now = time.time()
        for number, key in enumerate(keys):
            size, idle = answers[2 * number], answers[2 * number + 1]
            if isinstance(size, int) and size >= _VERSION:
                # Redis keeps no time of writing, only that of the last use; with an LFU policy not even that.
                age = idle if isinstance(idle, int) else 0
                yield Item(key.decode()[len(self._prefix) :], size - _VERSION, now - age)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def after_fork(self) -> None:
        self._client = None

    def _key(self, name: str) -> str:
        return self._prefix + check_name(name)

    def _check_writable(self) -> None:
        if self.read_only:
            raise RefusedError(f"{self.shown} is read-only", "read_only")

    def _open(self) -> Any:
        if self._client is None:
            try:
                import redis
                from redis.backoff import NoBackoff
                from redis.retry import Retry
            except ImportError:
                raise RefusedError(
                    f'{self.shown} needs the redis client: pip install "hotstart[redis]"', "missing_extra"
                ) from None
            try:
                self._client = redis.Redis.from_url(
                    self._url,
                    socket_timeout=self.timeout,
                    socket_connect_timeout=self.timeout,
                    retry=Retry(NoBackoff(), 0),  # retrying is the guard's
                )
            except Exception as error:
                self._fail(error)
            self._client.set_response_callback("STRLEN", _length)
        return self._client

    def _pipeline(self) -> Any:
        return self._open().pipeline(transaction=False)

    def _run(self, pipeline: Any, raise_on_error: bool = True) -> Answers:
        self.requests += 1
        try:
            return pipeline.execute(raise_on_error=raise_on_error)  # type: ignore[no-any-return]
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        raise _translate(error, self.shown) from None


def _length(size: Any, **_: object) -> Any:
    if isinstance(size, int):
        progress(min(size, DEFAULT_MAX_VALUE))
    return size


def _translate(error: Exception, shown: str) -> RemoteError:
    """Which of the four it is. The client's own text is not passed on: it may hold the URL with its password."""
    names = {cls.__name__ for cls in type(error).__mro__}
    text = str(error)
    for start, cause in _REFUSALS.items():
        # Raised from a pipeline, the text begins with the command.
        if text.startswith(start) or f": {start} " in text:
            return RefusedError(f"{shown}: {start}", cause)
    if "AuthenticationError" in names or "AuthorizationError" in names:
        return RefusedError(f"{shown}: the credentials are wrong or missing", "credentials")
    if "OutOfMemoryError" in names:
        return RefusedError(f"{shown}: it is full", "full")
    if "NoPermissionError" in names or "ReadOnlyError" in names:
        return RefusedError(f"{shown}: permission denied", "denied")
    if "TimeoutError" in names:
        return TimedOutError(f"{shown}: no answer in time")
    if "BusyLoadingError" in names:
        return BrokenError(f"{shown}: it is starting", "loading")
    if "ConnectionError" in names or isinstance(error, OSError):
        reset = "reset" in text or "closed" in text.lower()
        return BrokenError(f"{shown}: {'the connection was reset' if reset else 'it cannot be reached'}",
                           "reset" if reset else "unreachable")  # fmt: skip
    if "ResponseError" in names:
        return BrokenError(f"{shown}: it answers with an error", "error_reply")
    return as_remote_error(error, shown)
