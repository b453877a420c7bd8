"""What a push takes over from others and what not, what it repairs and resumes, and what it says when it cannot tell.

A manifest by one key lists packs of others. Each pack keeps the seal of who made it, so
revoking that key still reaches what it made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hotstart.remote import packs, pushing
from hotstart.remote.contract import BrokenError, Found, Remote, RemoteError
from hotstart.remote.directory import Directory
from hotstart.remote.hygiene import forget_signer
from hotstart.remote.manifests import pack_name, read_manifest, workload_name
from hotstart.remote.packs import Manifest, Member
from hotstart.remote.pushing import push
from hotstart.remote.workloads import pull

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Machine, Team, counted, key_of, make_entry

    from hotstart.remote.contract import Bytes
    from hotstart.remote.tier import RemoteTier
else:
    from machines import Machine, Team, counted, key_of, make_entry


@pytest.fixture
def two(near: Team, tmp_path: Path) -> Team:
    """Two keys are trusted for main; one pushed entries 0 to 2, then the other 3 to 5, as one workload."""
    near.list.add(near.stranger.public, ["main"], "other")
    first = Machine(near, tmp_path / "first", near.machine(signer=near.stranger))
    push(first.tier, first.disk, "train", first.compile(range(3)))
    second = Machine(near, tmp_path / "second")
    push(second.tier, second.disk, "train", second.compile(range(3, 6)))
    return near


def signers(machine: Machine) -> dict[int, str]:
    found = {number: machine.disk.read(key_of(number).digest) for number in range(10)}
    return {number: str(entry.provenance["signer"]) for number, entry in found.items() if entry is not None}


def shared(team: Team) -> Path:
    return Path(team.url.removeprefix("file://")) / "v1" / "main"


# -- packs of others -------------------------------------------------------------


def test_an_entry_says_who_made_its_pack_not_who_signed_the_manifest(two: Team, tmp_path: Path) -> None:
    reader = Machine(two, tmp_path / "reader")
    assert pull(reader.tier, reader.disk, "train").entries == 6
    assert signers(reader) == {**dict.fromkeys(range(3), two.stranger.id), **dict.fromkeys(range(3, 6), two.trusted.id)}
    assert len(forget_signer(reader.disk, two.stranger.id)) == 3


def test_a_revoked_key_has_no_say_in_a_manifest_that_a_good_one_signed(two: Team, tmp_path: Path) -> None:
    two.list.revoke(two.stranger.id)
    reader = Machine(two, tmp_path / "reader")
    done = pull(reader.tier, reader.disk, "train")
    assert (done.entries, done.failed) == (3, 0)
    assert set(signers(reader).values()) == {two.trusted.id}
    assert counted(reader.tier, "remote.rejected.") == {"revoked": 1}


def test_packs_of_a_revoked_key_are_not_taken_over(two: Team, tmp_path: Path) -> None:
    two.list.revoke(two.stranger.id)
    third = Machine(two, tmp_path / "third")
    push(third.tier, third.disk, "train", third.compile(range(6, 8)))
    reader = Machine(two, tmp_path / "reader")
    assert pull(reader.tier, reader.disk, "train").entries == 5
    assert counted(reader.tier, "remote.rejected.") == {}


def test_what_nobody_signed_is_not_signed_by_who_pushes_next(near: Team, tmp_path: Path) -> None:
    nobody = Machine(near, tmp_path / "nobody", near.machine(key=None, allow_unsigned=True))
    push(nobody.tier, nobody.disk, "train", nobody.compile(range(3)))
    one = Machine(near, tmp_path / "one", near.machine(allow_unsigned=True))
    push(one.tier, one.disk, "train", one.compile(range(3, 6)))
    reader = Machine(near, tmp_path / "reader")
    assert pull(reader.tier, reader.disk, "train").entries == 3
    assert signers(reader) == dict.fromkeys(range(3, 6), near.trusted.id)


def rewrite(team: Team, change: Callable[[Manifest], object]) -> None:
    """The manifest changed, and signed by the trusted key: packs do not get better by that."""
    path = shared(team) / "workloads" / "train"
    remote = team.machine().remotes[0]
    manifest = read_manifest(remote, "main", "train", team.machine().trust)
    change(manifest)
    path.write_bytes(manifest.seal("main", team.trusted))


def test_a_pack_under_the_seal_of_another_is_nothing(two: Team, tmp_path: Path) -> None:
    def swap(manifest: Manifest) -> None:
        one, other = manifest.packs
        one.head, other.head = other.head, one.head

    rewrite(two, swap)
    reader = Machine(two, tmp_path / "reader")
    assert pull(reader.tier, reader.disk, "train").entries == 0
    assert counted(reader.tier, "remote.rejected.") == {"other_key": 2}


def test_rows_added_to_a_sealed_index_are_nothing(two: Team, tmp_path: Path) -> None:
    def add(manifest: Manifest) -> None:
        ((made, _),) = packs.build([(key_of(9).digest, Member(make_entry(9)))], "main", two.stranger)
        for pack in manifest.packs:
            pack.index += made.index

    rewrite(two, add)
    reader = Machine(two, tmp_path / "reader")
    assert pull(reader.tier, reader.disk, "train").entries == 0
    assert counted(reader.tier, "remote.rejected.") == {"payload": 2}


def test_a_name_in_a_seal_without_a_signature_is_nobodys(near: Team, tmp_path: Path) -> None:
    """Where unsigned ones are let in, a stranger may write the name of a trusted key; it does not count as that."""

    class Posing:
        id = near.trusted.id

        def sign(self, message: bytes) -> bytes:
            return b""

    made = [(key_of(number).digest, Member(make_entry(number))) for number in range(2)]
    ((pack, whole),) = packs.build(made, "main", Posing())  # type: ignore[arg-type]
    remote = Directory(str(tmp_path / "shared"))
    assert remote.put(pack_name("main", pack.id), whole)
    assert remote.put(workload_name("main", "train"), Manifest("train", [pack], []).seal("main", near.trusted))
    strict = Machine(near, tmp_path / "strict")
    assert pull(strict.tier, strict.disk, "train").entries == 0
    reader = Machine(near, tmp_path / "reader", near.machine(allow_unsigned=True))
    assert pull(reader.tier, reader.disk, "train").entries == 2
    assert signers(reader) == {0: "", 1: ""}


# -- repair ----------------------------------------------------------------------


def test_packs_that_are_gone_are_sent_again(team: Team, tmp_path: Path) -> None:
    one = Machine(team, tmp_path / "one")
    digests = one.compile(range(3))
    push(one.tier, one.disk, "train", digests)
    remote = one.tier.remotes[0]
    remote.delete([item.name for item in list(remote.list("v1/main/packs/"))])
    reader = Machine(team, tmp_path / "reader")
    lost = pull(reader.tier, reader.disk, "train")
    assert (lost.found, lost.entries, lost.failed, lost.gone) == (True, 0, 3, 3)
    repaired = push(one.tier, one.disk, "train", digests)
    assert (repaired.entries, repaired.present) == (3, 0)
    assert pull(reader.tier, reader.disk, "train").entries == 3
    assert push(one.tier, one.disk, "train", digests).present == 3


def test_what_is_gone_and_nobody_here_has_is_no_longer_listed(two: Team, tmp_path: Path) -> None:
    for path in (shared(two) / "packs").iterdir():
        path.unlink()
    third = Machine(two, tmp_path / "third")
    push(third.tier, third.disk, "train", third.compile(range(6, 8)))
    reader = Machine(two, tmp_path / "reader")
    done = pull(reader.tier, reader.disk, "train")
    assert (done.entries, done.failed, done.gone) == (2, 0, 0)


def test_large_entries_that_are_gone_are_sent_again(
    near: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "_LARGEST_MEMBERS", 1000)
    one = Machine(near, tmp_path / "one")
    digests = one.compile(range(2))
    push(one.tier, one.disk, "train", digests)
    for path in (shared(near) / "entries").glob("*/*"):
        path.unlink()
    reader = Machine(near, tmp_path / "reader")
    lost = pull(reader.tier, reader.disk, "train")
    assert (lost.failed, lost.gone) == (2, 2)
    assert push(one.tier, one.disk, "train", digests).entries == 2
    assert pull(reader.tier, reader.disk, "train").entries == 2


# -- resumption and retries ------------------------------------------------------


class Recording(Directory):
    """Counts the bytes of packs that are sent, and fails where it is told to."""

    def __init__(self, root: str, fails: tuple[str, str] = ("", "")) -> None:
        super().__init__(root)
        self.fails = fails
        self.sent = 0

    def _break(self, what: str, name: str) -> None:
        if self.fails[0] == what and self.fails[1] in name:
            raise BrokenError("it answers with status 500", "http_500")

    def get(self, name: str, limit: int) -> Found:
        self._break("get", name)
        return super().get(name, limit)

    def put(self, name: str, data: Bytes, *, replaces: str = "") -> bool:
        self._break("put", name)
        self.sent += len(data) if "/packs/" in name else 0
        return super().put(name, data, replaces=replaces)


def over(team: Team, inner: Remote) -> RemoteTier:
    tier = team.machine()
    tier.remotes[0].inner = inner
    return tier


def test_an_interrupted_push_sends_no_pack_twice(near: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "_LARGEST_MEMBERS", 20_000)
    monkeypatch.setattr(pushing, "_ASK_FROM", 1000)
    one = Machine(near, tmp_path / "one")
    digests = one.compile(range(30))
    first = Recording(str(tmp_path / "shared"), ("put", "/workloads/"))
    with pytest.raises(RemoteError):
        push(over(near, first), one.disk, "train", digests)
    assert first.sent > 60_000
    resumed = Recording(str(tmp_path / "shared"))
    tier = over(near, resumed)
    done = push(tier, one.disk, "train", digests)
    assert (resumed.sent, done.entries) == (0, 30)
    assert counted(tier)["already_there"] == 5
    reader = Machine(near, tmp_path / "reader")
    assert pull(reader.tier, reader.disk, "train").entries == 30


def test_a_pack_found_under_its_name_counts_only_under_a_seal_that_counts(
    near: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "_ASK_FROM", 1000)
    one = Machine(near, tmp_path / "one")
    digests = one.compile(range(3))
    push(near.machine(signer=near.stranger), one.disk, "train", digests)
    push(one.tier, one.disk, "other", digests)
    assert counted(one.tier)["replaced"] == 1
    reader = Machine(near, tmp_path / "reader")
    assert pull(reader.tier, reader.disk, "other").entries == 3
    assert set(signers(reader).values()) == {near.trusted.id}


def test_who_signs_nothing_leaves_a_signed_pack_as_it_is(near: Team, tmp_path: Path) -> None:
    one = Machine(near, tmp_path / "one")
    digests = one.compile(range(3))
    push(one.tier, one.disk, "train", digests)
    unsigned = near.machine(key=None, allow_unsigned=True)
    push(unsigned, one.disk, "other", digests)
    assert "replaced" not in counted(unsigned)
    reader = Machine(near, tmp_path / "reader")
    assert pull(reader.tier, reader.disk, "train").entries == 3


def test_a_push_that_begins_again_counts_nothing_twice(near: Team, tmp_path: Path) -> None:
    one, two = Machine(near, tmp_path / "one"), Machine(near, tmp_path / "two")
    first, second = one.compile(range(10)), two.compile(range(10, 20))
    overtaken: list[int] = []

    class Overtaken(Recording):
        def put(self, name: str, data: Bytes, *, replaces: str = "") -> bool:
            if "/workloads/" in name and not overtaken:
                overtaken.append(push(two.tier, two.disk, "train", second).entries)
            return super().put(name, data, replaces=replaces)

    done = push(over(near, Overtaken(str(tmp_path / "shared"))), one.disk, "train", first)
    assert overtaken == [10]
    assert (done.entries, done.present, done.failed) == (10, 0, 0)


@pytest.mark.parametrize("what", ["/workloads/", "/packs/"])
def test_what_cannot_be_read_is_said_and_changes_nothing(near: Team, tmp_path: Path, what: str) -> None:
    one = Machine(near, tmp_path / "one")
    push(one.tier, one.disk, "train", one.compile(range(3)))
    before = (shared(near) / "workloads" / "train").read_bytes()
    tier = over(near, Recording(str(tmp_path / "shared"), ("get", what)))
    with pytest.raises(BrokenError, match=r"workload train is not pushed, since .* could not be read: .*500") as caught:
        push(tier, one.disk, "train", one.compile(range(3, 5)))
    assert caught.value.cause == "http_500"
    assert (shared(near) / "workloads" / "train").read_bytes() == before


def test_a_name_that_is_taken_by_what_is_no_object_is_said(near: Team, tmp_path: Path) -> None:
    (shared(near) / "workloads" / "train").mkdir(parents=True)
    one = Machine(near, tmp_path / "one")
    with pytest.raises(BrokenError, match="v1/main/workloads/train can neither be read nor replaced"):
        push(one.tier, one.disk, "train", one.compile(range(2)))
