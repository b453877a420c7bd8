"""Many processes that pose as many hosts, each with a store of its own, one remote between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hotstart.testing.servers import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Team
else:
    from machines import Team

PROGRAM = str(Path(__file__).with_name("compiling.py"))


def start(team: Team, host: int, environment: dict[str, str], **asked: Any) -> subprocess.Popen[str]:
    home = team.directory / f"host-{host}"
    said = {"store": f"{home}/store", "remote": team.url, "directory": str(team.directory), "first": 0, **asked}
    return subprocess.Popen(
        [sys.executable, PROGRAM, json.dumps(said)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment | {"HOTSTART_HOME": str(home)},
    )


def results(processes: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    found = []
    for process in processes:
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        found.append(json.loads(out.split("\n")[-2]))
    return found


@pytest.mark.parametrize("kind", ["s3", "redis"])
def test_sixty_four_hosts_compile_twenty_keys_twenty_times(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, hang_guard: None
) -> None:
    server: Server = request.getfixturevalue("seaweed" if kind == "s3" else "valkey_server")
    # Two cores for all of them and the server: a time-out that a real fleet would not need.
    team = Team(tmp_path, f"{server.url(f'hosts-{kind}-{os.getpid()}')}&timeout=120")
    processes = [start(team, host, server.environment, count=20, seconds=0.3, ready=True) for host in range(64)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = results(processes)
    assert all(result["right"] == 20 for result in found)
    compiled = sorted(number for result in found for number in result["compiled"])
    assert compiled == list(range(20))


def test_when_the_holder_is_killed_another_takes_over_and_nobody_fails(near: Team, hang_guard: None) -> None:
    """The holder is killed in the middle of its compile, eight hosts waiting for it."""
    holder = start(near, 0, {}, count=1, seconds=60, lease=3)
    leases = Path(near.url.removeprefix("file://")) / "v1" / "main" / "leases"
    deadline = time.monotonic() + 60
    while not list(leases.glob("*/*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    others = [start(near, host, {}, count=1, seconds=0.2, lease=3) for host in range(1, 9)]
    time.sleep(2)
    assert all(other.poll() is None for other in others)
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    found = results(others)
    assert [result["right"] for result in found] == [1] * 8
    assert sum(len(result["compiled"]) for result in found) == 1
    assert sum(result["remote"].get("flight.taken_over", 0) for result in found) == 1
