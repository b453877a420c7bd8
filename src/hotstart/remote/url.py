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
#: Options whose value anybody may see.
_SHOWN = set().union(_COMMON, *_OPTIONS.values()) - {"endpoint"}
#: Those whose URLs never hold a user.
_WITHOUT_USER = {"s3", "gs", "az", "file"}
#: What people write before a colon and is no secret.
_SCHEMES = {*_OPTIONS, "http", "https", "gcs", "azure", "abfs", "valkey", "memcached", "ftp"}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_IN_ENDPOINT = _PLAIN | frozenset(":/[]~%+")
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
    shown = redact(url)
    # urlsplit drops some of these silently, clients panic at others.
    if not url.isprintable() or (" " in url and not url.startswith("file://")):
        raise UsageError(f"remote {shown!r}: there is a space, a line break or the like in it; write %20 for a space")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"remote {shown!r} is not a URL{_escape(url)}") from None
    if parts.scheme not in _OPTIONS or "://" not in url:
        raise UsageError(f"remote {shown!r}: it begins with {', '.join(f'{name}://' for name in _OPTIONS)}")
    options = _options(url, parts)
    read_only = read_only or options.pop("read_only", "0") in ("1", "true")
    timeout = _timeout(url, options.pop("timeout", ""))
    if parts.scheme in ("redis", "rediss"):
        from .redis import DEFAULT_MAX_VALUE, Redis

        if not parts.hostname:
            raise UsageError(f"remote {shown!r} names no host: redis://HOST[:PORT][/DB]{_escape(url)}")
        database = parts.path.strip("/")
        if database and not database.isdigit():
            raise UsageError(f"remote {shown!r}: after the host comes the number of the database; prefix= is an option")
        ttl = options.get("ttl", "0")
        if not ttl.isdecimal() or not ttl.isascii():
            raise UsageError(f"remote {shown!r}: ttl is a number of seconds")
        bare = f"{parts.scheme}://{parts.netloc}/{database}"
        return Redis(
            bare,
            f"{parts.scheme}://{parts.hostname}" + (f":{port}" if port else "") + (f"/{database}" if database else ""),
            prefix=_prefix(shown, options.get("prefix", "hotstart")),
            read_only=read_only,
            max_value=_max_value(shown, options["max_value"]) if "max_value" in options else DEFAULT_MAX_VALUE,
            ttl=int(ttl),
            timeout=timeout,
        )
    if parts.username or parts.password or "@" in unquote(parts.netloc):
        raise UsageError(f"remote {shown!r}: credentials do not belong in the URL; use the environment or a profile")
    if parts.scheme == "file":
        from .directory import Directory

        path = unquote(parts.path)
        if parts.netloc or not os.path.isabs(path):
            raise UsageError(f"remote {shown!r}: three slashes and an absolute path: file:///mnt/team/hotstart")
        if not path.isprintable():
            raise UsageError(f"remote {shown!r}: there is a line break or the like in the path")
        return Directory(path, read_only=read_only, timeout=timeout)
    from .objects import Objects

    if not parts.netloc:
        raise UsageError(f"remote {shown!r} names no bucket: {parts.scheme}://BUCKET/PREFIX")
    if not _PLAIN.issuperset(parts.netloc):
        raise UsageError(f"remote {shown!r}: a bucket's name is letters, digits, '.', '_' and '-'")
    for name in ("region", "account"):
        if not _PLAIN.issuperset(options.get(name, "")):
            raise UsageError(f"remote {shown!r}: {name} is letters, digits, '.', '_' and '-'")
    return Objects(
        parts.scheme,
        parts.netloc,
        _prefix(shown, parts.path.strip("/")) if parts.path.strip("/") else "",
        endpoint=_endpoint(shown, options.get("endpoint", "")),
        region=options.get("region", ""),
        account=options.get("account", ""),
        read_only=read_only,
        timeout=timeout,
    )


def _escape(url: str) -> str:
    """A hint, where a password seems to be why a URL falls apart."""
    return "; in a password write %3F for ?, %23 for #, %2F for / and %40 for @" if "@" in url else ""


def _prefix(shown: str, text: str) -> str:
    try:
        return check_name(text)
    except UsageError:
        raise UsageError(
            f"remote {shown!r}: a prefix is parts of letters, digits, '.', '_', '-', joined by single slashes"
        ) from None


def _max_value(shown: str, text: str) -> int:
    try:
        return parse_size(text, "max_value")
    except UsageError:
        raise UsageError(f"remote {shown!r}: max_value is bytes or a binary unit without a space: 8MiB") from None


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
    try:
        parts = urlsplit(text)
        good = bool(parts.scheme in ("http", "https") and parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or "@" in unquote(text) or not _IN_ENDPOINT.issuperset(text):
        raise UsageError(f"remote {shown!r}: endpoint is http://HOST:PORT or https://…, without credentials")
    return text


def redact(url: str) -> str:
    """The URL for people: scheme, host, path. User, password and options are left out, whatever they are."""
    scheme, found, rest = url.partition("://")
    if not found:
        scheme, found, _ = url.partition(":")
        return f"{scheme}:…" if found and scheme.lower() in _SCHEMES else "…"
    if not scheme.isalnum():
        return "…"
    rest = _without_user(scheme, rest)
    rest = rest.partition("?")[0].partition("#")[0]
    host, slash, path = rest.partition("/")
    name, colon, port = host.rpartition(":")
    if colon and not port.isdecimal() and not host.endswith("]"):
        host = f"{name}:…"  # no port, and who knows what it is
    return f"{scheme}://{host}{slash}{path}"


def _without_user(scheme: str, rest: str) -> str:
    """What follows the last @, also an escaped one: a password may hold characters that should have been escaped."""
    options = rest.partition("?")[2]
    if scheme.lower() in _WITHOUT_USER and options.partition("=")[0] in _OPTIONS[scheme.lower()] | _COMMON:
        rest = rest.partition("?")[0]  # these are options, and an @ in them, as in an endpoint's, ends no user
    plain = _decode(rest)
    return plain.rpartition("@")[2] if "@" in plain else rest


def _decode(text: str) -> str:
    """Without escapes, nor escapes of escapes."""
    for _ in range(4):
        text, before = unquote(text), text
        if text == before:
            break
    return text


def show_chain(setting: str) -> str:
    """A setting for people: the URLs of the chain, with those options that we know and that hold no secret."""
    shown = []
    for url in split_chain(setting):
        pairs = [pair for pair in map(_show_option, url.partition("?")[2].split("&")) if pair]
        if "@" in _decode(url.partition("?")[2]) and url.partition(":")[0].lower() not in _WITHOUT_USER:
            pairs = []  # the question mark is one of a password
        shown.append(redact(url) + (f"?{'&'.join(pairs)}" if pairs else ""))
    return ",".join(shown)


def _show_option(pair: str) -> str:
    """Empty for what is not known to be harmless. Of an endpoint only where it is: a token may be in its path."""
    name, _, value = pair.partition("=")
    value = _decode(value)
    if name == "endpoint":
        try:
            parts = urlsplit(_endpoint("", value))
        except UsageError:
            return ""
        return f"{name}={parts.scheme}://{parts.netloc}"
    return pair if name in _SHOWN and value and _PLAIN.union("/").issuperset(value) else ""
