"""What a remote's URL may say; and that no secret in one is ever shown."""

from __future__ import annotations

import pytest

from hotstart.errors import UsageError
from hotstart.remote.contract import RefusedError
from hotstart.remote.url import open_remote, open_remotes, redact, show_chain, split_chain

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        "", "bucket", "s3:/bucket", "http://x/y", "s3://", "s3:///prefix", "s3://bucket/../x", "s3://bucket/a b",
        f"s3://key:{SECRET}@bucket/prefix", f"s3://bucket?secret={SECRET}", f"s3://bucket?{SECRET}",
        "s3://bucket?endpoint=ftp://x", f"s3://bucket?endpoint=http://u:{SECRET}@h", "s3://bucket?timeout=soon",
        "s3://bucket?timeout=-1", "s3://bucket?read_only=perhaps", "file://relative/path", "file://", "gs://b?region=x",
        f"redis://:{SECRET}@", f"redis://:{SECRET}@host:port/0", f"redis://:{SECRET}@host/prefix",
        f"redis://u:{SECRET}@host?password={SECRET}", f"redis://u:{SECRET}@h?ttl=never", f"redis://:{SECRET}@h?max_value=1GB",
    ],
)  # fmt: skip
def test_nonsense_is_one_clear_line_without_secrets(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_remote(url)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://user:{SECRET}@cache:6379/3?prefix=x", "redis://cache:6379/3"),
        (f"redis://:{SECRET}/@{SECRET}@cache", "redis://cache"),
        (f"s3://bucket/prefix?endpoint=http://x&token={SECRET}", "s3://bucket/prefix"),
        (f"{SECRET}", "…"),
        (f"{SECRET}:x", "…"),
        ("s3:/team", "s3:…"),
        (f"http:{SECRET}", "http:…"),
        (f"redis://:{SECRET}?2{SECRET}@cache/0", "redis://cache/0"),
        (f"redis://:{SECRET}#2{SECRET}@cache/0", "redis://cache/0"),
        (f"redis://:x?ttl=5{SECRET}@cache/0", "redis://cache/0"),
        (f"redis://:{SECRET}%40cache", "redis://cache"),
        (f"s3://KEY:{SECRET}%2540bucket/x", "s3://bucket/x"),
        (f"s3://KEY:{SECRET}/x", "s3://KEY:…/x"),
        (f"s3://KEY:{SECRET}?x@bucket", "s3://bucket"),
        (f"s3://bucket/p?endpoint=http://KEY:{SECRET}@h", "s3://bucket/p"),
        ("redis://[::1]/0", "redis://[::1]/0"),
    ],
)
def test_redaction_leaves_scheme_host_and_path(url: str, shown: str) -> None:
    assert redact(url) == shown


def test_a_chain_is_shown_with_the_options_that_matter_and_no_secret() -> None:
    near, far = f"redis://u:{SECRET},x/@y@cache/0?ttl=60", f"s3://c?endpoint=http://u:{SECRET}@h"
    chain = f"{near},s3://b/p?endpoint=http://h:1&token={SECRET}&region=x,{far}"
    assert show_chain(chain) == "redis://cache/0?ttl=60,s3://b/p?endpoint=http://h:1&region=x,s3://c"
    assert show_chain(SECRET) == "…"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://:{SECRET}?2{SECRET}@cache/0", "redis://cache/0"),
        (f"redis://:x?ttl={SECRET}&y@cache/0", "redis://cache/0"),
        (f"s3://b/p?endpoint=http://KEY:{SECRET}%40h", "s3://b/p"),
        (f"s3://b/p?endpoint=http%3A%2F%2FKEY%3A{SECRET}%40h", "s3://b/p"),
        (f"s3://b/p?endpoint=http://KEY:{SECRET}%2540h", "s3://b/p"),
        (f"az://c/p?account=x&endpoint=https://h/%3Fsig%3D{SECRET}", "az://c/p?account=x"),
        (f"az://c/p?endpoint=https://h/{SECRET}", "az://c/p?endpoint=https://h"),
        (f"s3://b?region=x%26token%3D{SECRET}&timeout=3", "s3://b?timeout=3"),
    ],
)
def test_an_escaped_secret_is_no_less_one(url: str, shown: str) -> None:
    assert show_chain(url) == shown


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3:/team", "'s3:…': it begins with s3://"),
        (f"redis://:a?{SECRET}@cache", "in a password write %3F"),
        ("s3://team/../x", "'s3://team/../x': a prefix is"),
        ("redis://h?prefix=../x", "'redis://h': a prefix is"),
        ("redis://h?max_value=lots", "'redis://h': max_value is"),
    ],
)
def test_what_is_wrong_is_said_of_the_setting(url: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_remote(url)
    assert said in str(caught.value)
    assert str(caught.value).startswith("remote ")
    assert SECRET not in str(caught.value)


def test_what_is_shown_of_a_remote_holds_no_secret() -> None:
    remote = open_remote(f"redis://user:{SECRET}@cache:6379/3")
    assert remote.shown == "redis://cache:6379/3"
    assert SECRET not in repr(remote)


def test_a_chain_is_split_where_a_scheme_follows() -> None:
    chain = f"redis://:{SECRET},x@cache , s3://team/kernels?read_only=1"
    assert split_chain(chain) == [f"redis://:{SECRET},x@cache", "s3://team/kernels?read_only=1"]
    near, far = open_remotes(chain)
    assert (near.shown, near.read_only) == ("redis://cache", False)
    assert (far.shown, far.read_only) == ("s3://team/kernels", True)
    assert all(remote.read_only for remote in open_remotes(chain, read_only=True))


@pytest.mark.parametrize(("url", "extra", "module"), [("s3://b", "s3", "obstore"), ("redis://h", "redis", "redis")])
def test_a_missing_client_says_what_to_install(
    url: str, extra: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(RefusedError, match=rf"hotstart\[{extra}\]") as caught:
        open_remote(url).get("a", 1)
    assert caught.value.cause == "missing_extra"
