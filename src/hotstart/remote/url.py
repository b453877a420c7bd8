"""From ``HOTSTART_REMOTE`` to remotes: what a URL may say, and how it is shown to people.

    s3://bucket/prefix?region=…&endpoint=…      gs://bucket/prefix      az://container/prefix?account=…
    redis://[user:password@]host[:port][/db]?prefix=…&max_value=8MiB&ttl=604800      file:///directory

Each also takes ``read_only=1`` and ``timeout=SECONDS``. Several, separated by commas,
are a chain. Nothing is connected to, or imported, here.
"""

from __future__ import annotations

import os
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import UsageError
from ..keys.digest import digest_of
from ..store.sizes import parse_size
from .contract import DEFAULT_TIMEOUT, Remote, check_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from urllib.parse import SplitResult

_COMMON = {"read_only", "timeout"}
_OPTIONS = {
    "s3": {"region", "endpoint"},
    "gs": set[str](),
    "az": {"account", "endpoint"},
    "redis": {"prefix", "max_value", "ttl"},
    "rediss": {"prefix", "max_value", "ttl"},
    "file": set[str](),
}
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}


def open_remotes(setting: str, *, read_only: bool = False) -> list[Remote]:
    """The remotes of a chain, nearest first. Raises UsageError, without any secret in it."""
    return [open_remote(url, read_only=read_only) for url in split_chain(setting)]


def split_chain(setting: str) -> list[str]:
    """The URLs in it. A comma ends one only where another scheme follows, so that a password may hold one."""
    urls: list[str] = []
    for piece in setting.split(","):
        if not urls or "://" in piece:
            urls.append(piece)
        else:
            urls[-1] += f",{piece}"
    return [url.strip() for url in urls if url.strip()]


def read_only_chain(setting: str) -> str:
    """The same remotes, none of them to be written."""
    return ",".join(f"{url}{'&' if '?' in url else '?'}read_only=1" for url in split_chain(setting))


def open_remote(url: str, *, read_only: bool = False) -> Remote:
    """One remote. Raises UsageError for a URL that cannot mean one."""
    remote = _open(url, read_only)
    remote.address = url
    # Options count, since an endpoint is one; a user and password do not.
    remote.identity = digest_of(f"{redact(url)}?{url.partition('?')[2]}".encode())[:16]
    return remote


def _open(url: str, read_only: bool) -> Remote:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"remote {redact(url)!r} is not a URL") from None
    if parts.scheme not in _OPTIONS or "://" not in url:
        raise UsageError(f"remote {redact(url)!r}: it begins with {', '.join(f'{name}://' for name in _OPTIONS)}")
    options = _options(url, parts)
    read_only = read_only or options.pop("read_only", "0") in ("1", "true")
    timeout = _timeout(url, options.pop("timeout", ""))
    shown = redact(url)
    if parts.scheme in ("redis", "rediss"):
        from .redis import DEFAULT_MAX_VALUE, Redis

        if not parts.hostname:
            raise UsageError(f"remote {shown!r} names no host: redis://HOST[:PORT][/DB]")
        database = parts.path.strip("/")
        if database and not database.isdigit():
            raise UsageError(f"remote {shown!r}: after the host comes the number of the database; prefix= is an option")
        ttl = options.get("ttl", "0")
        if not ttl.isdigit():
            raise UsageError(f"remote {shown!r}: ttl is a number of seconds, not {ttl!r}")
        bare = f"{parts.scheme}://{parts.netloc}/{database}"
        return Redis(
            bare,
            f"{parts.scheme}://{parts.hostname}" + (f":{port}" if port else "") + (f"/{database}" if database else ""),
            prefix=check_name(options.get("prefix", "hotstart")),
            read_only=read_only,
            max_value=parse_size(options["max_value"], "max_value") if "max_value" in options else DEFAULT_MAX_VALUE,
            ttl=int(ttl),
            timeout=timeout,
        )
    if parts.username or parts.password or "@" in parts.netloc:
        raise UsageError(f"remote {shown!r}: credentials do not belong in the URL; use the environment or a profile")
    if parts.scheme == "file":
        from .directory import Directory

        path = unquote(parts.path)
        if parts.netloc or not os.path.isabs(path):
            raise UsageError(f"remote {shown!r}: three slashes and an absolute path: file:///mnt/team/hotstart")
        return Directory(path, read_only=read_only, timeout=timeout)
    from .objects import Objects

    if not parts.netloc:
        raise UsageError(f"remote {shown!r} names no bucket: {parts.scheme}://BUCKET/PREFIX")
    prefix = parts.path.strip("/")
    if prefix:
        check_name(prefix)
    return Objects(
        parts.scheme,
        parts.netloc,
        prefix,
        endpoint=_endpoint(shown, options.get("endpoint", "")),
        region=options.get("region", ""),
        account=options.get("account", ""),
        read_only=read_only,
        timeout=timeout,
    )


def _options(url: str, parts: SplitResult) -> dict[str, str]:
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise UsageError(f"remote {redact(url)!r}: after the question mark come name=value pairs joined by &") from None
    allowed = _OPTIONS[parts.scheme] | _COMMON
    for name, _ in pairs:
        if name not in allowed:
            # The name may be a secret that lost its "password=": it is not shown.
            raise UsageError(f"remote {redact(url)!r}: the options of {parts.scheme} are {', '.join(sorted(allowed))}")
    options = dict(pairs)
    if options.get("read_only", "0") not in _SWITCHES:
        raise UsageError(f"remote {redact(url)!r}: read_only is 1 or 0")
    return options


def _timeout(url: str, text: str) -> float:
    if not text:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 600:
        raise UsageError(f"remote {redact(url)!r}: timeout is a number of seconds from 0 to 600")
    return seconds


def _endpoint(shown: str, text: str) -> str:
    if not text:
        return ""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise UsageError(f"remote {shown!r}: endpoint is http://HOST:PORT or https://…, without credentials")
    return text


def redact(url: str) -> str:
    """The URL for people: scheme, host, path. User, password and options are left out, whatever they are."""
    scheme, found, rest = url.partition("://")
    if not found:
        return "…"
    rest = rest.partition("?")[0].partition("#")[0]
    host, slash, path = rest.partition("/")
    # A password may hold a slash or an @ that was not escaped: everything up to the last @ is dropped.
    if "@" in rest:
        host, slash, path = rest.rpartition("@")[2].partition("/")
    return f"{scheme}://{host}{slash}{path}"


def show_chain(setting: str) -> str:
    """A setting for people: the URLs of the chain, with those options that we know and that can hold no secret."""
    known = set().union(_COMMON, *_OPTIONS.values())
    shown = []
    for url in split_chain(setting):
        pairs = [
            pair for pair in url.partition("?")[2].split("&") if pair.partition("=")[0] in known and "@" not in pair
        ]
        shown.append(redact(url) + (f"?{'&'.join(pairs)}" if pairs else ""))
    return ",".join(shown)
