"""A remote in every kind of trouble: 50 compiles in 8 processes succeed, nothing wrong is served, the cause is counted.

A proxy of ours stands between the processes and the real server and makes the trouble.
That it costs at most one time-out is asserted by counting: no process waits for a
time-out more than once, and a new one on the same host not at all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotstart.remote.contract import RemoteError
from hotstart.remote.url import open_remote
from hotstart.testing.servers import READER, Server, seaweedfs, valkey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.clock import skewed
    from tests.remote.compiling import key_of
    from tests.remote.machines import Team
    from tests.remote.proxy import Proxy
else:
    from clock import skewed
    from compiling import key_of
    from machines import Team
    from proxy import Proxy

COMPILES, PROCESSES = 50, 8
TIMEOUT = 1.5


class Host:
    """Processes that share a home, and a remote behind a proxy."""

    def __init__(self, directory: Path, server: Server, proxy: Proxy, environment: dict[str, str]) -> None:
        self.directory, self.proxy, self.environment = directory, proxy, environment
        self.prefix = directory.name.replace("_", "-").lower()
        self.url = f"{server.url(self.prefix, proxy.port)}&timeout={TIMEOUT}"
        self.direct = server.url(self.prefix)
        self.team = Team(directory, self.url)

    def run(self, name: str = "host", environment: dict[str, str] | None = None, **asked: Any) -> list[dict[str, Any]]:
        """All compiles, spread over the processes; what each says."""
        home = self.directory / name
        environment = os.environ | self.environment | {"HOTSTART_HOME": str(home)} | (environment or {})
        share = -(-COMPILES // PROCESSES)
        processes = []
        for number in range(PROCESSES):
            first = number * share
            said = {"store": f"{home}/store", "remote": self.url, "directory": str(self.directory),
                    "count": min(share, COMPILES - first), **asked, "first": first + asked.get("first", 0)}  # fmt: skip
            program = str(Path(__file__).with_name("compiling.py"))
            processes.append(
                subprocess.Popen(
                    [sys.executable, program, json.dumps(said)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
        results = []
        for process in processes:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            assert "Traceback" not in err
            assert err.count("\n") <= 4, err
            results.append(json.loads(out))
        return results


def total(results: list[dict[str, Any]], name: str) -> int:
    return sum(result["remote"].get(name, 0) for result in results)


def check(results: list[dict[str, Any]], compiled: int | None = COMPILES) -> None:
    assert sum(result["right"] for result in results) == COMPILES
    if compiled is not None:
        assert sum(len(result["compiled"]) for result in results) == compiled
    assert sum(result["corrupt"] for result in results) == 0
    for result in results:
        assert result["remote"].get("timed_out", 0) <= 1


@pytest.fixture(params=["s3", "redis"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue("seaweed" if request.param == "s3" else "valkey_server")
    return found


@pytest.fixture
def host(tmp_path: Path, server: Server) -> Iterator[Host]:
    with Proxy(server.port) as proxy:
        yield Host(tmp_path, server, proxy, server.environment)


def test_without_trouble_it_is_shared(host: Host, hang_guard: None) -> None:
    check(host.run("one"))
    results = host.run("two")
    check(results, compiled=0)
    assert total(results, "hits") == COMPILES


def test_it_accepts_and_never_answers(host: Host, hang_guard: None) -> None:
    """ccache adds ten seconds to every compile, sccache fails the build."""
    host.proxy.mode = "hang"
    results = host.run()
    check(results)
    assert 1 <= total(results, "timed_out") <= PROCESSES
    assert all(result["remote"].get("timed_out", 0) + result["remote"].get("given_up", 0) <= 1 for result in results)
    assert total(results, "skipped") > 0
    before = host.proxy.connections
    later = host.run()
    check(later, compiled=0)  # from the host's own store
    fresh = host.run(store=str(host.directory / "another-store"))
    check(fresh)
    assert total(fresh, "timed_out") == 0
    assert host.proxy.connections == before


@pytest.mark.parametrize(
    ("mode", "s3", "redis"),
    [
        ("reset", {"reset", "truncated"}, {"reset", "unreachable"}),
        ("truncate", {"truncated", "reset"}, {"reset", "unreachable"}),
        ("500", {"http_500"}, {"error_reply"}),
        ("503", {"throttled"}, {"error_reply"}),
        ("down", {"reset", "unreachable"}, {"reset", "unreachable"}),
    ],
    ids=["reset", "truncate", "500", "503", "down"],
)
def test_it_breaks_off(host: Host, mode: str, s3: set[str], redis: set[str], hang_guard: None) -> None:
    host.run("seed")
    host.proxy.mode = mode
    results = host.run("host")
    check(results)
    causes = {name for result in results for name in result["remote"] if name.startswith("broken")}
    expected = s3 if host.url.startswith("s3") else redis
    assert causes and causes <= {f"broken.{cause}" for cause in expected}
    assert total(results, "skipped") > 0
    assert total(results, "hits") == 0


def test_it_serves_wrong_bytes(host: Host, hang_guard: None) -> None:
    host.run("seed")
    host.proxy.mode = "flip"
    results = host.run("host")
    check(results, compiled=None)
    assert any(name.startswith(("rejected", "broken")) for result in results for name in result["remote"])


def test_it_serves_somebody_elses_entries(host: Host, hang_guard: None) -> None:
    host.run("seed")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in host.environment.items():
            patch.setenv(name, value)
        remote = open_remote(host.direct)
        names = sorted(item.name for item in remote.list("v1/main/entries/"))
        assert len(names) == COMPILES
        content = {name: bytes(remote.get(name, 1 << 20).data) for name in names}
        for number, name in enumerate(names):
            other = content[names[(number + 1) % len(names)]]
            assert remote.put(name, other, replaces=remote.get(name, 1).tag)
    results = host.run("host")
    check(results)
    assert total(results, "rejected.other_key") >= COMPILES
    # Each was replaced by a good one, so the next host finds all.
    check(host.run("next"), compiled=0)


def test_it_goes_away_and_comes_back(host: Host, hang_guard: None) -> None:
    host.proxy.mode = "down"
    check(host.run("one"))
    host.proxy.mode = "pass"
    check(host.run("two"))
    check(host.run("three"), compiled=0)
    for breaker in (host.directory / "one" / "remote").glob("breaker-*"):
        breaker.write_text("1.0 30.0 unreachable\n")  # the cool-down is over
    results = host.run("one", store=str(host.directory / "fresh"))
    check(results, compiled=None)
    assert total(results, "hits") > 0


def test_it_denies_writes(tmp_path: Path, seaweed: Server, hang_guard: None) -> None:
    reader = {"AWS_ACCESS_KEY_ID": READER[0], "AWS_SECRET_ACCESS_KEY": READER[1]}
    with Proxy(seaweed.port) as proxy:
        host = Host(tmp_path, seaweed, proxy, reader)
        results = host.run()
    check(results)
    assert total(results, "refused.denied") > 0
    assert total(results, "puts") == 0


def test_it_is_full(tmp_path: Path, hang_guard: None) -> None:
    (tmp_path / "server").mkdir()
    with valkey(tmp_path / "server", "--maxmemory", "1200kb") as server, Proxy(server.port) as proxy:
        host = Host(tmp_path, server, proxy, {})
        results = host.run()
    check(results)
    assert total(results, "refused.full") > 0


def read_though_full(host: Host, cause: str) -> None:
    """Nothing more can be put, for the cause that is counted, and another machine still gets what is there."""
    results = host.run("host", first=COMPILES)
    check(results)
    assert total(results, cause) > 0
    assert total(results, "puts") == 0
    again = host.run("host", store=str(host.directory / "another-store"))
    check(again, compiled=0)
    assert total(again, "hits") == COMPILES


@pytest.mark.parametrize("mode", ["507", "quota"])
def test_a_store_that_says_that_it_is_full_is_still_read(
    tmp_path: Path, seaweed: Server, mode: str, hang_guard: None
) -> None:
    """Answers of MinIO and of Ceph, given by the proxy: the real server here has another way, see below."""
    with Proxy(seaweed.port) as proxy:
        host = Host(tmp_path, seaweed, proxy, seaweed.environment)
        check(host.run("seed"))
        proxy.mode = mode
        read_though_full(host, "refused.full")


def test_a_store_that_is_full_and_says_500_is_still_read(tmp_path: Path, hang_guard: None) -> None:
    """What SeaweedFS really answers when it has no volume left to write to."""
    (tmp_path / "server").mkdir()
    limits = ("-volume.max=8", "-master.volumeSizeLimitMB=1")
    with seaweedfs(tmp_path / "server", *limits) as server, Proxy(server.port) as proxy:
        host = Host(tmp_path, server, proxy, server.environment)
        check(host.run("seed"))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in host.environment.items():
                patch.setenv(name, value)
            remote = open_remote(server.url("filler"))
            with pytest.raises(RemoteError):
                for number in range(200):
                    remote.put(f"a/{number}", os.urandom(1_000_000))
        read_though_full(host, "broken.http_500")


def test_its_clock_is_ten_minutes_off(host: Host, hang_guard: None) -> None:
    """For the whole process, signing of requests included: S3 takes up to a quarter of an hour."""
    check(host.run("fast", skewed(host.directory, 600)))
    results = host.run("slow", skewed(host.directory, -600))
    check(results, compiled=0)
    assert total(results, "hits") == COMPILES


def test_a_clock_too_far_off_for_signed_requests_is_named(tmp_path: Path, seaweed: Server, hang_guard: None) -> None:
    """The server's own check, RequestTimeTooSkewed, not one of ours."""
    with Proxy(seaweed.port) as proxy:
        host = Host(tmp_path, seaweed, proxy, seaweed.environment)
        results = host.run("host", skewed(tmp_path, 1200))
        check(results)
        assert total(results, "refused.clock") > 0
        assert total(results, "hits") == total(results, "puts") == 0
        check(host.run("host"), compiled=0)  # local caching went on


def test_what_was_made_meanwhile_is_right(host: Host, hang_guard: None) -> None:
    """The names on the remote are those of the keys, whatever happened on the way."""
    host.run("one")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in host.environment.items():
            patch.setenv(name, value)
        found = {item.name.rpartition("/")[2] for item in open_remote(host.direct).list("v1/main/entries/")}
    assert found == {key_of(number).digest for number in range(COMPILES)}
