"""S3 through obstore, against a real SeaweedFS: the contract, and errors that say what is wrong and no secret."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hotstart
from hotstart.remote.contract import BrokenError, RefusedError, Remote, TimedOutError
from hotstart.remote.elsewhere import Elsewhere
from hotstart.remote.url import open_remote
from hotstart.testing.remote import RemoteConformance
from hotstart.testing.servers import READER, Server, free_port

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Team, key_of, make_entry
else:
    from machines import Team, key_of, make_entry


class TestS3(RemoteConformance):
    @pytest.fixture(autouse=True)
    def server(self, s3_url: str) -> None:
        self.url = s3_url

    def make_remote(self, tmp_path: Path, *, read_only: bool = False) -> Remote:
        return open_remote(self.url, read_only=read_only)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def test_a_bucket_that_is_not_there_is_a_refusal(seaweed: Server, s3_url: str) -> None:
    remote = open_remote(s3_url.replace("s3://team/", "s3://nobody/"))
    with pytest.raises(RefusedError, match="no such bucket") as caught:
        remote.get("a", 1)
    assert caught.value.cause == "no_bucket"


def test_wrong_credentials_are_a_refusal_that_does_not_tell_them(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-right-one")
    with pytest.raises(RefusedError, match="credentials") as caught:
        open_remote(s3_url).get("a", 1)
    assert caught.value.cause == "credentials"
    assert "not-the-right-one" not in str(caught.value)


def test_who_may_only_read_is_refused_writing(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_remote(s3_url).put("a", b"1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER[1])
    reader = open_remote(s3_url)
    assert bytes(reader.get("a", 1).data) == b"1"
    with pytest.raises(RefusedError) as caught:
        reader.put("b", b"1")
    assert caught.value.cause == "denied"


def test_credentials_of_a_profile_are_found(s3_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "team")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[team]\naws_access_key_id = writer\naws_secret_access_key = writer-secret\n"
    )
    assert open_remote(s3_url).put("a", b"1")


def test_nobody_there_is_broken(s3_url: str) -> None:
    remote = open_remote(f"s3://team?endpoint=http://127.0.0.1:{free_port()}")
    with pytest.raises(BrokenError) as caught:
        remote.get("a", 1)
    assert caught.value.cause == "unreachable"


def test_no_answer_is_timed_out(s3_url: str, silent_port: int) -> None:
    remote = open_remote(f"s3://team?endpoint=http://127.0.0.1:{silent_port}&timeout=0.3")
    for call in (
        lambda: remote.get("a", 1),
        lambda: remote.get("a", 1 << 30),
        lambda: remote.get_range("a", 0, 1 << 25),
        lambda: remote.put("a", b"1"),
        lambda: remote.delete(["a"]),
        lambda: list(remote.list("")),
    ):
        with pytest.raises(TimedOutError):
            call()


@pytest.mark.parametrize("url", ["gs://bucket/prefix", "az://container/prefix?account=team"])
def test_the_other_clouds_open_without_asking_anybody(url: str) -> None:
    """What they do once asked is in test_clouds.py, where there is somebody to ask."""
    remote = open_remote(url)
    assert remote.requests == 0
    assert remote.shown == url.partition("?")[0]


def test_a_forked_child_is_refused_not_hung(s3_url: str, fork: Callable[..., Any]) -> None:
    """The client alone: what a child really gets is below."""
    remote = open_remote(s3_url)
    assert remote.put("a", b"1")

    def child() -> str:
        remote.after_fork()
        try:
            remote.get("a", 1)
        except RefusedError as error:
            return error.cause
        return "answered"

    assert fork(child).result() == "forked"


class TestElsewhere(RemoteConformance):
    """The same contract through a process that asks for us."""

    @pytest.fixture(autouse=True)
    def server(self, s3_url: str) -> Iterator[None]:
        self.url = s3_url
        self.opened: list[Elsewhere] = []
        yield
        for remote in self.opened:
            remote.close()

    def make_remote(self, tmp_path: Path, *, read_only: bool = False) -> Remote:
        remote = Elsewhere.of(open_remote(self.url, read_only=read_only))
        assert remote is not None
        self.opened.append(remote)
        return remote


def test_a_forked_child_shares_as_its_parent_does(
    s3_url: str, tmp_path: Path, fork: Callable[..., Any], hang_guard: None
) -> None:
    """Workers of Inductor, of a DataLoader, of gunicorn: forked after the parent has used the client."""
    team = Team(tmp_path, s3_url)
    options = {"remote": s3_url, "trust": team.list.path, "signing_key": str(tmp_path / "trusted.key")}
    cache = hotstart.Cache(tmp_path / "one" / "store", **options)  # type: ignore[arg-type]
    assert cache.put(key_of(0), {"x": b"0"})
    assert cache.get(key_of(1)) is None
    assert team.machine().publish(make_entry(2))

    def child() -> Any:
        assert cache.put(key_of(3), {"x": b"3"})
        entry = cache.get(key_of(2))
        assert cache.get(key_of(4)) is None
        cache.close()
        said = cache.stats()["remote"]
        return [entry is not None and entry.tier, said["puts"], [name for name in said if name.startswith("refused")]]

    assert fork(child).result() == ["remote", 1, []]
    cache.close()
    assert team.machine().read(key_of(3).digest) is not None


def test_the_process_that_asks_ends_with_who_asked(s3_url: str, fork: Callable[..., Any], hang_guard: None) -> None:
    remote = open_remote(s3_url)
    assert remote.put("a", b"1")

    def child() -> int:
        moved = Elsewhere.of(remote)
        assert moved is not None
        assert bytes(moved.get("a", 1).data) == b"1"
        assert moved._process is not None
        return moved._process.pid  # and never closed

    pid = fork(child).result()
    deadline = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_when_the_process_that_asks_dies_another_is_started(s3_url: str, hang_guard: None) -> None:
    remote = Elsewhere.of(open_remote(s3_url))
    assert remote is not None
    assert remote.put("a", b"1")
    assert remote._process is not None
    remote._process.kill()
    remote._process.wait()
    with pytest.raises(BrokenError) as caught:
        remote.get("a", 1)
    assert caught.value.cause == "helper"
    assert bytes(remote.get("a", 1).data) == b"1"
    remote.close()


def test_its_errors_are_those_of_the_remote(silent_port: int, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Elsewhere.of(open_remote(f"s3://team?endpoint=http://127.0.0.1:{silent_port}&timeout=0.3"))
    assert remote is not None
    with pytest.raises(TimedOutError):
        remote.get("a", 1)
    remote.close()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-right-one")
    remote = Elsewhere.of(open_remote(s3_url))
    assert remote is not None
    with pytest.raises(RefusedError) as caught:
        remote.get("a", 1)
    assert caught.value.cause == "credentials"
    remote.close()


def test_where_no_process_can_be_started_a_child_works_locally(
    s3_url: str, tmp_path: Path, fork: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """An interpreter inside another program knows of none to start."""
    team = Team(tmp_path, s3_url)
    options = {"remote": s3_url, "trust": team.list.path, "signing_key": str(tmp_path / "trusted.key")}
    cache = hotstart.Cache(tmp_path / "one" / "store", **options)  # type: ignore[arg-type]
    assert cache.get(key_of(1)) is None

    def child() -> Any:
        sys.executable = ""
        for number in range(3):
            assert cache.get_or_compile(key_of(number), lambda: {"x": b"1"})["x"] == b"1"
        cache.close()
        said = cache.stats()["remote"]
        return [said["refused.forked"], said["skipped"] > 0]

    assert fork(child).result() == [1, True]
    assert capfd.readouterr().err.count("forked process") == 1
    cache.close()
