"""Azure Blob against Azurite, its maker's emulator; Google Cloud Storage against a bucket of yours, if you name one.

Needs Node: ``npm install azurite`` anywhere, and ``HOTSTART_AZURITE`` with the path of its ``azurite-blob``.
No emulator of Google's store that a package index has speaks the XML interface that the client uses
(gcp-storage-emulator has no listing, no deletion and no conditions there), so for that one
``HOTSTART_TEST_GS=gs://bucket/prefix`` says where to go, with credentials in the usual places.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotstart.remote.contract import RefusedError, Remote
from hotstart.remote.url import open_remote
from hotstart.testing.remote import RemoteConformance
from hotstart.testing.servers import AZURE_KEY, MissingServerError, Server, azurite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Team, make_entry, same
else:
    from machines import Team, make_entry, same


@pytest.fixture(scope="session")
def azurite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        with azurite(tmp_path_factory.mktemp("azurite")) as server:
            yield server
    except MissingServerError as error:
        pytest.skip(str(error))


@pytest.fixture
def azure_url(azurite_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in azurite_server.environment.items():
        monkeypatch.setenv(name, value)
    return azurite_server.url(uuid.uuid4().hex)


class TestAzure(RemoteConformance):
    @pytest.fixture(autouse=True)
    def server(self, azure_url: str) -> None:
        self.url = azure_url

    def make_remote(self, tmp_path: Path, *, read_only: bool = False) -> Remote:
        return open_remote(self.url, read_only=read_only)


def test_what_one_machine_publishes_to_azure_another_reads(azure_url: str, tmp_path: Path) -> None:
    team, entry = Team(tmp_path, azure_url), make_entry(1)
    assert team.machine().publish(entry)
    assert same(team.machine().read(entry.digest), entry)


def test_a_container_that_is_not_there_is_a_refusal(azure_url: str) -> None:
    with pytest.raises(RefusedError) as caught:
        open_remote(azure_url.replace("az://team/", "az://nobody/")).get("a", 1)
    assert caught.value.cause == "no_bucket"


def test_a_wrong_key_is_a_refusal_that_does_not_tell_it(azure_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = AZURE_KEY.replace("Eby8", "Abc1")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
    with pytest.raises(RefusedError) as caught:
        open_remote(azure_url).get("a", 1)
    assert caught.value.cause in ("credentials", "denied")
    assert wrong not in str(caught.value)


@pytest.mark.skipif(
    not os.environ.get("HOTSTART_TEST_GS"),
    reason="needs a bucket: HOTSTART_TEST_GS=gs://bucket/prefix, and credentials in the usual places",
)
class TestGoogle(RemoteConformance):
    @pytest.fixture(autouse=True)
    def prefix(self) -> None:
        self.url = f"{os.environ['HOTSTART_TEST_GS']}/{uuid.uuid4().hex}"

    def make_remote(self, tmp_path: Path, *, read_only: bool = False) -> Remote:
        return open_remote(self.url, read_only=read_only)
