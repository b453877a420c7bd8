"""Real servers on loopback, started once a session; each test has a prefix of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotstart.remote.contract import Remote
from hotstart.remote.url import open_remote
from hotstart.testing.servers import MissingServerError, Server, seaweedfs, valkey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Team
else:
    from machines import Team

pytest.register_assert_rewrite("hotstart.testing.remote")


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        with seaweedfs(tmp_path_factory.mktemp("seaweed")) as server:
            yield server
    except MissingServerError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        with valkey(tmp_path_factory.mktemp("valkey")) as server:
            yield server
    except MissingServerError as error:
        pytest.skip(str(error))


@pytest.fixture
def s3_url(seaweed: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the writer's credentials where S3 clients look for them."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    return seaweed.url(uuid.uuid4().hex)


@pytest.fixture
def redis_url(valkey_server: Server) -> str:
    return valkey_server.url(uuid.uuid4().hex)


@pytest.fixture(params=["file", "s3", "redis"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each kind of remote in turn, empty."""
    if request.param == "file":
        return f"file://{tmp_path}/shared"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def any_remote(any_url: str) -> Remote:
    return open_remote(any_url)


@pytest.fixture
def team(tmp_path: Path, any_url: str) -> Team:
    return Team(tmp_path, any_url)


@pytest.fixture
def near(tmp_path: Path) -> Team:
    """On a shared directory: for what does not depend on the kind of remote."""
    return Team(tmp_path, f"file://{tmp_path}/shared")
