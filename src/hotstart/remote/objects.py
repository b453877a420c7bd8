"""Object stores: S3 and whatever speaks it, Google Cloud Storage, Azure Blob. All through ``obstore``.

Create-only is ``If-None-Match: *``, replacing is ``If-Match``: both are decided by the
store, so two writers need no lock. Credentials come from the platform's usual places
(environment, profile file, instance and workload identity) and never from the URL.
"""

from __future__ import annotations

import os

from ..log import say
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

#: A large transfer may take this long in all, as long as something keeps coming.
_LONGEST = 600

#: Requests for more than this are large transfers.
_LARGE = 1 << 20

#: Pieces of a body, at least: large enough to be worth the call, small enough to show whether something comes.
_PIECE = 1 << 16

#: What the server calls it → the word it is counted under.
_REFUSALS = {
    "NoSuchBucket": "no_bucket",
    "ContainerNotFound": "no_bucket",
    "SignatureDoesNotMatch": "credentials",
    "InvalidAccessKeyId": "credentials",
    "ExpiredToken": "credentials",
    "InvalidToken": "credentials",
    "AuthenticationFailed": "credentials",
    "RequestTimeTooSkewed": "clock",
    "QuotaExceeded": "full",
    "InsufficientStorage": "full",
    "EntityTooLarge": "oversize",
}

_SAID = {
    "no_bucket": "there is no such bucket",
    "credentials": "the credentials are wrong or missing",
    "clock": "the clock of this machine is too far off",
    "full": "it is full",
    "denied": "permission denied",
    "unreachable": "it cannot be reached",
}

#: Variables that obstore takes as they are and puts into headers, where a line break makes it panic.
_VARIABLES = {
    "s3": (
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
    ),
    "gs": ("GOOGLE_BUCKET", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS"),
    "az": (
        "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_STORAGE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID",
    ),
}  # fmt: skip

#: The process in which obstore has been used.
_user = 0


class Objects(Remote):
    """One bucket, or a prefix in it. ``scheme`` is ``s3``, ``gs`` or ``az``.

    Nothing is imported, resolved or sent before the first call.
    """

    def __init__(
        self,
        scheme: str,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str = "",
        region: str = "",
        account: str = "",
        read_only: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.read_only = read_only
        self.timeout = timeout
        self.shown = f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else "")
        self._scheme, self._bucket = scheme, bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint, self._region, self._account = endpoint, region, account
        self._clients: tuple[Any, Any] | None = None

    def prepare(self) -> None:
        self._open()

    def get(self, name: str, limit: int) -> Found:
        obstore, quick, bulk = self._open()
        path = self._path(name)
        self.requests += 1
        try:
            result = obstore.get(bulk if limit > _LARGE else quick, path, options={"range": (0, max(1, limit))})
            meta = result.meta
            data = memoryview(_body(result, min(limit, meta["size"])))[:limit]
        except Exception as error:
            if "status: 416" in str(error):
                return self._get_empty(path)
            self._fail(error)
        if len(data) != min(limit, meta["size"]):
            raise BrokenError(f"{self.shown}: {name} was cut short", "truncated")
        return Found(data, meta["size"], _tag(meta))

    def _get_empty(self, path: str) -> Found:
        """No range of an object without bytes can be satisfied: ask for it whole."""
        obstore, quick, _ = self._open()
        self.requests += 1
        try:
            result = obstore.get(quick, path)
            return Found(b"", result.meta["size"], _tag(result.meta))
        except Exception as error:
            self._fail(error)

    def get_range(self, name: str, start: int, length: int, tag: str = "") -> Bytes:
        result = self._range(name, start, length, tag)
        try:
            data = memoryview(_body(result, length))
        except Exception as error:
            self._fail(error)
        if len(data) != length:
            raise BrokenError(f"{self.shown}: {name} is shorter than it should be", "truncated")
        return data

    def stream(self, name: str, start: int, length: int) -> Iterator[Bytes]:
        result = self._range(name, start, length, "")
        got = 0
        try:
            for piece in result.stream(min_chunk_size=_PIECE):
                data = memoryview(piece)
                got += len(data)
                progress(len(data))
                yield data
        except RemoteError:
            raise  # the consumer's own
        except Exception as error:
            self._fail(error)
        if got != length:
            raise BrokenError(f"{self.shown}: {name} is shorter than it should be", "truncated")

    def _range(self, name: str, start: int, length: int, tag: str) -> Any:
        obstore, quick, bulk = self._open()
        path = self._path(name)
        options: dict[str, Any] = {"range": (start, start + length)}
        if tag:
            options["if_match"] = tag.partition("\n")[0]
        self.requests += 1
        try:
            return obstore.get(bulk if length > _LARGE else quick, path, options=options)
        except Exception as error:
            self._fail(error)

    def put(self, name: str, data: Bytes, *, replaces: str = "") -> bool:
        path = self._path(name)
        self._check_writable()
        obstore, quick, bulk = self._open()
        mode: Any = "create"
        if replaces:
            e_tag, _, version = replaces.partition("\n")
            mode = {"e_tag": e_tag} | ({"version": version} if version else {})
        self.requests += 1
        progress(len(data))  # how much of it has left is not known
        try:
            # In one request, whatever the size: conditions do not hold for uploads in parts everywhere.
            obstore.put(
                bulk if len(data) > _LARGE else quick, path, data,
                mode=mode, use_multipart=False,
            )  # fmt: skip
            return True
        except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
            return False
        except FileNotFoundError as error:
            if replaces and "NoSuchBucket" not in str(error):
                return False
            self._fail(error)
        except Exception as error:
            self._fail(error)

    def delete(self, names: Iterable[str]) -> None:
        paths = [self._path(name) for name in names]
        self._check_writable()
        if not paths:
            return
        obstore, quick, bulk = self._open()
        for at in range(0, len(paths), 1000):
            self.requests += 1
            try:
                obstore.delete(bulk if len(paths) > 50 else quick, paths[at : at + 1000])
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    self._fail(error)
            except Exception as error:
                self._fail(error)

    def list(self, prefix: str) -> Iterator[Item]:
        if prefix:
            check_name(prefix.rstrip("/"))
        obstore, _, bulk = self._open()
        self.requests += 1
        where = self._prefix + prefix
        try:
            for chunk in obstore.list(bulk, prefix=where or None, chunk_size=1000):
                self.beats += 1
                for meta in chunk:
                    # Stores differ in whether a prefix without its slash matches more.
                    if meta["path"].startswith(where):
                        name = meta["path"][len(self._prefix) :]
                        yield Item(name, meta["size"], meta["last_modified"].timestamp())
        except RemoteError:
            raise
        except Exception as error:
            self._fail(error)

    def after_fork(self) -> None:
        self._clients = None

    def _path(self, name: str) -> str:
        return self._prefix + check_name(name)

    def _check_writable(self) -> None:
        if self.read_only:
            raise RefusedError(f"{self.shown} is read-only", "read_only")

    def _open(self) -> tuple[Any, Any, Any]:
        """obstore, a client for what is small and one for what is large."""
        global _user
        if _user not in (0, os.getpid()):
            # The client's threads did not come along: it would wait for them for ever, past every time-out.
            raise RefusedError(f"{self.shown}: a forked process cannot use what its parent used before", "forked")
        try:
            import obstore
            import obstore.exceptions
            import obstore.store
        except ImportError:
            raise RefusedError(f'{self.shown} needs obstore: pip install "hotstart[s3]"', "missing_extra") from None
        _user = os.getpid()
        if self._clients is None:
            self._check_variables()
            quick = {"timeout": f"{self.timeout * 1000:.0f}ms"}
            bulk = {"timeout": f"{_LONGEST}s", "read_timeout": f"{self.timeout * 1000:.0f}ms"}
            try:
                self._clients = self._client(obstore.store, quick), self._client(obstore.store, bulk)
            except Exception as error:
                self._fail(error)
        return obstore, *self._clients

    def _check_variables(self) -> None:
        """Raises RefusedError that names the variable, never what is in it."""
        for name in _VARIABLES[self._scheme]:
            value = os.environ.get(name, "")
            if value.strip() != value:
                wrong = "line break" if "\n" in value or "\r" in value else "space"
                raise RefusedError(f"{self.shown}: {name} begins or ends with a {wrong}", "credentials")
            if not value.isprintable():
                raise RefusedError(f"{self.shown}: {name} holds a character that cannot be in it", "credentials")

    def _client(self, store: Any, limits: dict[str, str]) -> Any:
        options: dict[str, Any] = {"connect_timeout": f"{self.timeout * 1000:.0f}ms", **limits}
        if self._endpoint.startswith("http://"):
            options["allow_http"] = True
        # Retrying is the guard's: it knows what the breaker says and how much time is left.
        common: dict[str, Any] = {"client_options": options, "retry_config": {"max_retries": 0}}
        if self._scheme == "gs":
            return store.GCSStore(self._bucket, **common)
        if self._endpoint:
            common["endpoint"] = self._endpoint
        if self._scheme == "az":
            if self._account:
                common["account_name"] = self._account
            return store.AzureStore(self._bucket, **common)
        region = self._region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        common["region"] = region or _profile("config").get("region") or "us-east-1"
        if not os.environ.get("AWS_ACCESS_KEY_ID"):
            known = _profile("credentials")
            if "aws_access_key_id" in known and "aws_secret_access_key" in known:
                common["access_key_id"] = known["aws_access_key_id"]
                common["secret_access_key"] = known["aws_secret_access_key"]
                if "aws_session_token" in known:
                    common["session_token"] = known["aws_session_token"]
        return store.S3Store(self._bucket, **common)

    def _fail(self, error: BaseException) -> NoReturn:
        raise _translate(error, self.shown) from None


def _translate(error: BaseException, shown: str) -> RemoteError:
    """Which of the four it is. What the client wrote is not passed on: it holds URLs, and those may hold tokens."""
    text, kind = str(error), type(error).__name__
    for code, cause in _REFUSALS.items():
        if f"<Code>{code}" in text or f'"{code}"' in text:
            return RefusedError(f"{shown}: {_SAID.get(cause, cause)} ({code})", cause)
    if isinstance(error, FileNotFoundError):
        if "bucket does not exist" in text:
            return RefusedError(f"{shown}: there is no such bucket", "no_bucket")
        return AbsentError(f"{shown}: no such object")
    if kind == "UnauthenticatedError" or "Credential" in text or "credential" in text:
        return RefusedError(f"{shown}: {_SAID['credentials']}", "credentials")
    if kind == "PermissionDeniedError":
        return RefusedError(f"{shown}: permission denied", "denied")
    if kind == "PreconditionError":
        return BrokenError(f"{shown}: the object was replaced while it was read", "replaced")
    if "kind: Timeout" in text or "TimedOut" in text:
        return TimedOutError(f"{shown}: no answer in time")
    status = _status(text)
    if status == 416:
        return BrokenError(f"{shown}: the object is shorter than it should be", "truncated")
    if status in (429, 503):
        return BrokenError(f"{shown}: it asks to slow down (status {status})", "throttled")
    if status == 507:
        return RefusedError(f"{shown}: it is full", "full")
    if status >= 500:
        return BrokenError(f"{shown}: it answers with status {status}", f"http_{status}")
    if status >= 400:
        return RefusedError(f"{shown}: it answers with status {status}", f"http_{status}")
    if "kind: Connect," in text:  # and not ConnectionReset
        return BrokenError(f"{shown}: it cannot be reached", "unreachable")
    if "IncompleteBody" in text or "UnexpectedEof" in text:
        return BrokenError(f"{shown}: the answer was cut short", "truncated")
    if any(word in text for word in ("reset", "Interrupted", "IncompleteMessage", "error sending request")):
        return BrokenError(f"{shown}: the connection was reset", "reset")
    return as_remote_error(error, shown)


def _body(result: Any, length: int) -> Bytes:
    """All of it; what is large in pieces, so that whoever waits sees it come."""
    if length <= _PIECE:
        return result.bytes()  # type: ignore[no-any-return]
    pieces = []
    for piece in result.stream(min_chunk_size=_PIECE):
        pieces.append(memoryview(piece))
        progress(len(pieces[-1]))
    return b"".join(pieces)


def _status(text: str) -> int:
    digits = text.partition("status: ")[2][:3]
    return int(digits) if digits.isdigit() else 0


def _tag(meta: Any) -> str:
    """Stores compare either; both are kept."""
    return f"{meta['e_tag'] or ''}\n{meta['version'] or ''}"


def _profile(which: str) -> dict[str, str]:
    """The settings of the chosen profile in ``~/.aws``; none where there is no such file."""
    import configparser

    default = os.path.expanduser(f"~/.aws/{which}")
    variable = "AWS_SHARED_CREDENTIALS_FILE" if which == "credentials" else "AWS_CONFIG_FILE"
    path = os.environ.get(variable) or default
    name = os.environ.get("AWS_PROFILE") or "default"
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        say("warning", f"{path} cannot be read; looking for credentials elsewhere", once=f"profile {path}")
        return {}
    for section in (name, f"profile {name}"):
        if parser.has_section(section):
            return dict(parser.items(section))
    return {}
