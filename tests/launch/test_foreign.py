"""What was restored from somebody else's entry is never published as one's own, whatever became of the entry.

Three machines and a directory for a remote: one writes ``pr-7``, one reads that and writes ``main``, one reads
``main`` alone and must never see what the first made.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hotstart.launch import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.launch.launching import Place
else:
    from launching import Place

EVIL = "mkdir -p $TRITON_CACHE_DIR/EVIL; echo EVILCODE > $TRITON_CACHE_DIR/EVIL/k.cubin"
MINE = "mkdir -p $TRITON_CACHE_DIR/MINE; echo MINE > $TRITON_CACHE_DIR/MINE/k.cubin"
ADDS = "echo more > $TRITON_CACHE_DIR/EVIL/k.json"


class Fleet:
    """``writer`` of pr-7, ``between``, which reads both and writes main, ``reader`` of main alone."""

    def __init__(self, path: Path) -> None:
        self.writer, self.between, self.reader = (self._machine(path, name) for name in ("pr", "between", "main"))
        self.pr = self._keygen(self.writer)
        main = self._keygen(self.between)
        for place in (self.writer, self.between):
            self._call(place, "trust", "add", self.pr["public"], "--scope", "pr-7")
        for place in (self.between, self.reader):
            self._call(place, "trust", "add", main["public"], "--scope", "main")
        self.writer.environ["HOTSTART_SCOPE"] = "pr-7"
        self.between.environ["HOTSTART_SCOPE"] = "main,pr-7"
        self.run(self.writer, EVIL)
        self.run(self.between, "true")
        assert self.between.files() == {"triton/EVIL/k.cubin": b"EVILCODE\n"}

    @staticmethod
    def _machine(path: Path, name: str) -> Place:
        (path / name).mkdir()
        place = Place(path / name)
        (place.path / "user").mkdir()
        place.environ["HOTSTART_REMOTE"] = f"file://{path}/shared"
        return place

    @staticmethod
    def _call(place: Place, *arguments: str) -> str:
        done = place.hotstart(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _keygen(self, place: Place) -> dict[str, str]:
        return dict(json.loads(self._call(place, "trust", "keygen", "--json")))

    def run(self, place: Place, script: str) -> None:
        done = place.run("--name", "train", "sh", "-c", script)
        assert done.returncode == 0, done.stderr

    def revoke(self) -> dict[str, object]:
        return dict(json.loads(self._call(self.between, "trust", "remove", self.pr["id"], "--json")))

    def signers(self) -> list[str]:
        """Whose the entries between are."""
        listed = json.loads(self._call(self.between, "ls", "--long", "--json"))
        return [entry["provenance"].get("signer", "own") for entry in listed]

    def published(self) -> dict[str, bytes]:
        """What a machine that trusts only main gets, after ours has made and published something of its own."""
        self.run(self.between, MINE)
        self.run(self.reader, "true")
        return self.reader.files()


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


ONLY_MINE = {"triton/MINE/k.cubin": b"MINE\n"}


def test_a_unit_to_which_a_program_adds_stays_with_who_made_it(fleet: Fleet) -> None:
    fleet.run(fleet.between, ADDS)
    assert fleet.signers() == [fleet.pr["id"]]
    assert fleet.published() == ONLY_MINE


def test_files_whose_entry_was_lost_stay_with_who_made_them(fleet: Fleet) -> None:
    """Evicted, cleared or damaged: the next run takes them in again."""
    shutil.rmtree(fleet.between.home / "store")
    (fleet.between.home / "launch" / "inventory").unlink()
    fleet.run(fleet.between, ADDS)
    assert fleet.signers() == [fleet.pr["id"]]
    assert fleet.published() == ONLY_MINE


def test_a_lost_record_is_made_again_from_the_entries(fleet: Fleet) -> None:
    (fleet.between.home / "launch" / "foreign").unlink()
    fleet.run(fleet.between, ADDS)
    assert fleet.signers() == [fleet.pr["id"]]
    assert fleet.published() == ONLY_MINE


def test_files_of_which_nobody_knows_whose_they_are_are_not_ours(fleet: Fleet) -> None:
    shutil.rmtree(fleet.between.home / "store")
    shutil.rmtree(fleet.between.home / "launch")
    del fleet.between.environ["HOTSTART_REMOTE"]
    (fleet.between.home / "remote").mkdir(exist_ok=True)  # somebody has asked one from here
    fleet.run(fleet.between, ADDS)
    assert fleet.signers() == [""]
    fleet.between.environ["HOTSTART_REMOTE"] = fleet.reader.environ["HOTSTART_REMOTE"]
    assert fleet.published() == ONLY_MINE


def test_revoking_a_key_removes_the_files_too(fleet: Fleet) -> None:
    told = fleet.revoke()
    assert told["files"] == 1
    assert fleet.between.files() == {}
    assert fleet.published() == ONLY_MINE


def test_revoking_removes_units_that_were_added_to_and_leaves_ours(fleet: Fleet) -> None:
    fleet.run(fleet.between, f"{ADDS}; {MINE}")
    assert fleet.revoke()["files"] == 2
    assert fleet.between.files() == ONLY_MINE


def test_revoking_goes_by_the_entries_where_the_record_is_lost(fleet: Fleet) -> None:
    (fleet.between.home / "launch" / "foreign").unlink()
    assert fleet.revoke()["files"] == 1
    assert fleet.between.files() == {}


def test_what_is_compiled_where_a_foreign_file_was_is_ours(fleet: Fleet) -> None:
    """The record holds for a path as long as something is there."""
    fleet.revoke()
    fleet.run(fleet.between, EVIL.replace("EVILCODE", "OURS"))
    assert fleet.signers() == ["own"]
    assert fleet.published() == {**ONLY_MINE, "triton/EVIL/k.cubin": b"OURS\n"}


def test_a_home_that_never_had_a_remote_has_no_doubts(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (tmp_path / "user").mkdir()
    place.sh(MINE)
    (place.home / "launch" / "foreign").unlink()
    (place.home / "launch" / "inventory").unlink()
    place.sh("echo more > $TRITON_CACHE_DIR/MINE/k.json")
    assert foreign.load(str(place.home)) == {}
    listed = json.loads(place.hotstart("ls", "--long", "--json").stdout)
    assert [entry["provenance"].get("signer") for entry in listed] == [None]
