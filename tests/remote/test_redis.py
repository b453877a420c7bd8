"""Redis through a real Valkey: the contract, its limits, and errors that do not tell the password."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from hotstart.remote.contract import AbsentError, BrokenError, RefusedError, Remote, TimedOutError
from hotstart.remote.url import open_remote
from hotstart.testing.remote import RemoteConformance
from hotstart.testing.servers import PASSWORD, Server, free_port, valkey


class TestRedis(RemoteConformance):
    @pytest.fixture(autouse=True)
    def server(self, redis_url: str) -> None:
        self.url = redis_url + "&max_value=1MiB"

    def make_remote(self, tmp_path: Path, *, read_only: bool = False) -> Remote:
        return open_remote(self.url, read_only=read_only)


def test_a_batch_is_one_round_trip(redis_url: str) -> None:
    remote = open_remote(redis_url)
    for number in range(50):
        assert remote.put(f"a/{number}", b"%d" % number)
    before = remote.requests
    assert len(remote.get_many([f"a/{number}" for number in range(100)], 10)) == 50
    assert remote.requests == before + 1


def test_a_wrong_password_is_a_refusal_that_does_not_tell_it(valkey_server: Server) -> None:
    remote = open_remote(f"redis://:not-{PASSWORD}@127.0.0.1:{valkey_server.port}/0")
    with pytest.raises(RefusedError) as caught:
        remote.get("a", 1)
    assert caught.value.cause == "credentials"
    assert PASSWORD not in str(caught.value) + repr(remote) + remote.shown


def test_nobody_there_is_broken() -> None:
    with pytest.raises(BrokenError) as caught:
        open_remote(f"redis://:{PASSWORD}@127.0.0.1:{free_port()}/0").get("a", 1)
    assert caught.value.cause == "unreachable"
    assert PASSWORD not in str(caught.value)


def test_no_answer_is_timed_out() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        remote = open_remote(f"redis://127.0.0.1:{listener.getsockname()[1]}?timeout=0.2")
        with pytest.raises(TimedOutError):
            remote.get("a", 1)


def test_a_full_server_is_a_refusal(tmp_path: Path) -> None:
    with valkey(tmp_path, "--maxmemory", "3mb") as server:
        remote = open_remote(server.url("full"))
        with pytest.raises(RefusedError) as caught:
            for number in range(20):
                remote.put(f"a/{number}", bytes(500_000))
        assert caught.value.cause == "full"


def test_what_has_a_lifetime_is_forgotten(redis_url: str) -> None:
    remote = open_remote(f"{redis_url}&ttl=1")
    assert remote.put("a", b"1")
    deadline = time.monotonic() + 30
    with pytest.raises(AbsentError):
        while time.monotonic() < deadline:
            remote.get("a", 1)
            time.sleep(0.2)
