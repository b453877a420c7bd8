"""Named workloads: packs and manifests, what a start costs in requests, interruption, merging, what is not taken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hotstart.errors import UsageError
from hotstart.remote import packs, pushing
from hotstart.remote.contract import BrokenError
from hotstart.remote.directory import Directory
from hotstart.remote.manifests import pack_name, workload_name
from hotstart.remote.pushing import push
from hotstart.remote.workloads import pull

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Machine, Team, counted, key_of, same

    from hotstart.remote.contract import Bytes
else:
    from machines import Machine, Team, counted, key_of, same


@pytest.fixture
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "LARGEST_PACK", 100_000)
    monkeypatch.setattr(packs, "_LARGEST_MEMBERS", 90_000)
    monkeypatch.setattr(pushing, "LARGEST_PACK", 100_000)
    monkeypatch.setattr(pushing, "_SMALL_PACK", 50_000)


def test_a_workload_travels_whole(team: Team, tmp_path: Path) -> None:
    one, other = Machine(team, tmp_path / "one"), Machine(team, tmp_path / "other")
    digests = one.compile(range(60))
    pushed = push(one.tier, one.disk, "train", digests)
    assert (pushed.entries, pushed.foreign, pushed.failed) == (60, 0, 0)
    pulled = pull(other.tier, other.disk, "train")
    assert (pulled.found, pulled.entries, pulled.failed) == (True, 60, 0)
    for number in range(60):
        found, made = other.cache.get(key_of(number)), one.cache.get(key_of(number))
        assert made is not None
        assert same(found, made)
        assert found is not None and found.provenance["signer"] == team.trusted.id
    assert len(other.cache.verify()["ok"]) == 60


def test_a_start_costs_the_manifest_and_one_read_a_pack(near: Team, tmp_path: Path, small_packs: None) -> None:
    one, other = Machine(near, tmp_path / "one"), Machine(near, tmp_path / "other")
    pushed = push(one.tier, one.disk, "train", one.compile(range(200)))
    packs_needed = -(-pushed.bytes // 90_000)
    pulled = pull(other.tier, other.disk, "train")
    assert pulled.requests <= 1 + packs_needed + 1
    assert pull(other.tier, other.disk, "train").requests == 1
    assert pulled.entries == 200


def test_only_what_is_missing_is_fetched(near: Team, tmp_path: Path, small_packs: None) -> None:
    one, other = Machine(near, tmp_path / "one"), Machine(near, tmp_path / "other")
    digests = one.compile(range(100))
    push(one.tier, one.disk, "train", digests)
    assert pull(other.tier, other.disk, "train").entries == 100
    for digest in (digests[3], digests[4], digests[90]):
        assert other.disk.delete(digest)
    again = pull(other.tier, other.disk, "train")
    assert (again.entries, again.present, again.requests) == (3, 97, 3)


class Breaking(Directory):
    """Streams that break after so many bytes."""

    def __init__(self, root: str, breaks: list[int]) -> None:
        super().__init__(root)
        self.breaks = breaks

    def stream(self, name: str, start: int, length: int) -> Iterator[Bytes]:
        data = bytes(self.get_range(name, start, length))
        if self.breaks:
            end = self.breaks.pop()
            for at in range(0, min(end, length), 1000):
                yield data[at : min(at + 1000, end, length)]
            if end < length:
                raise BrokenError("reset in the middle", "reset")
        else:
            yield data


def test_a_stream_that_breaks_is_taken_up_where_it_ended(near: Team, tmp_path: Path) -> None:
    one = Machine(near, tmp_path / "one")
    push(one.tier, one.disk, "train", one.compile(range(40)))
    tier = near.machine()
    tier.remotes[0].inner = Breaking(near.url.removeprefix("file://"), [7_777, 10])
    other = Machine(near, tmp_path / "other", tier)
    pulled = pull(other.tier, other.disk, "train")
    assert (pulled.entries, pulled.failed) == (40, 0)


def test_an_interrupted_pull_goes_on_where_it_ended(near: Team, tmp_path: Path) -> None:
    one = Machine(near, tmp_path / "one")
    push(one.tier, one.disk, "train", one.compile(range(40)))
    tier = near.machine()
    tier.remotes[0].inner = Breaking(near.url.removeprefix("file://"), [3_000] * 40)
    other = Machine(near, tmp_path / "other", tier)
    first = pull(other.tier, other.disk, "train")
    assert 0 < first.entries < 40
    assert first.failed == 40 - first.entries
    tier = near.machine()
    other = Machine(near, tmp_path / "other", tier)
    second = pull(other.tier, other.disk, "train")
    assert (second.entries, second.present) == (40 - first.entries, first.entries)


def test_pushing_again_sends_only_what_is_new_and_merges_small_packs(near: Team, tmp_path: Path) -> None:
    one = Machine(near, tmp_path / "one")
    for step in range(6):
        digests = one.compile(range(10 * step, 10 * step + 10))
        push(one.tier, one.disk, "train", digests)
    nothing = push(one.tier, one.disk, "train", digests)
    assert (nothing.entries, nothing.present) == (0, 10)
    other = Machine(near, tmp_path / "other")
    pulled = pull(other.tier, other.disk, "train")
    assert (pulled.entries, pulled.requests) == (60, 2)


def test_two_who_push_at_once_lose_nothing(near: Team, tmp_path: Path) -> None:
    one, two = Machine(near, tmp_path / "one"), Machine(near, tmp_path / "two")
    first, second = one.compile(range(10)), two.compile(range(10, 20))
    original = packs.build
    interleaved: list[int] = []

    def build_and_be_overtaken(*arguments: object) -> object:
        if not interleaved:
            interleaved.append(1)
            push(two.tier, two.disk, "train", second)
        return original(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pushing, "build", build_and_be_overtaken)
        push(one.tier, one.disk, "train", first)
    other = Machine(near, tmp_path / "other")
    assert pull(other.tier, other.disk, "train").entries == 20


def test_what_others_signed_is_not_pushed_as_ones_own(near: Team, tmp_path: Path) -> None:
    near.list.add(near.stranger.public, ["pr-*"])
    stranger = Machine(near, tmp_path / "stranger", near.machine(scope="pr-7", signer=near.stranger))
    push(stranger.tier, stranger.disk, "train", stranger.compile(range(5)))
    one = Machine(near, tmp_path / "one", near.machine(scope="main,pr-7"))
    assert pull(one.tier, one.disk, "train").entries == 5
    pushed = push(one.tier, one.disk, "train", [*one.compile(range(5, 8)), *(key_of(n).digest for n in range(5))])
    assert (pushed.entries, pushed.foreign) == (3, 5)
    other = Machine(near, tmp_path / "other")
    assert pull(other.tier, other.disk, "train").entries == 3


def test_a_damaged_member_costs_that_member(near: Team, tmp_path: Path) -> None:
    one = Machine(near, tmp_path / "one")
    push(one.tier, one.disk, "train", one.compile(range(20)))
    (pack,) = (tmp_path / "shared" / "v1" / "main" / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    other = Machine(near, tmp_path / "other")
    pulled = pull(other.tier, other.disk, "train")
    assert (pulled.entries, pulled.failed) == (19, 1)
    assert counted(other.tier, "remote.rejected.") == {"payload": 1}


def test_a_manifest_of_a_stranger_is_nothing_and_is_replaced(near: Team, tmp_path: Path) -> None:
    stranger = Machine(near, tmp_path / "stranger", near.machine(signer=near.stranger))
    push(stranger.tier, stranger.disk, "train", stranger.compile(range(5)))
    other = Machine(near, tmp_path / "other")
    pulled = pull(other.tier, other.disk, "train")
    assert (pulled.found, pulled.entries) == (False, 0)
    assert counted(other.tier, "remote.rejected.") == {"untrusted": 1}
    one = Machine(near, tmp_path / "one")
    assert push(one.tier, one.disk, "train", one.compile(range(5))).entries == 5
    other = Machine(near, tmp_path / "other")
    assert pull(other.tier, other.disk, "train").entries == 5


def test_a_pack_whose_name_was_taken_by_a_stranger_is_taken_back(near: Team, tmp_path: Path) -> None:
    one, scout = Machine(near, tmp_path / "one"), Machine(near, tmp_path / "scout")
    digests = one.compile(range(5))
    push(one.tier, one.disk, "train", digests)
    shared = tmp_path / "shared" / "v1" / "main"
    (pack,) = (shared / "packs").iterdir()
    pack.write_bytes(b"taken")
    (shared / "workloads" / "train").unlink()
    push(one.tier, one.disk, "train", digests)
    assert counted(one.tier)["replaced"] == 1
    assert pull(scout.tier, scout.disk, "train").entries == 5


def test_the_manifest_of_one_workload_is_not_that_of_another(near: Team, tmp_path: Path) -> None:
    one = Machine(near, tmp_path / "one")
    push(one.tier, one.disk, "train", one.compile(range(5)))
    shared = Directory(str(tmp_path / "shared"))
    assert shared.put(workload_name("main", "serve"), shared.get(workload_name("main", "train"), 1 << 20).data)
    other = Machine(near, tmp_path / "other")
    assert not pull(other.tier, other.disk, "serve").found
    assert counted(other.tier, "remote.rejected.") == {"other_key": 1}


def test_entries_too_large_for_a_pack_travel_alone(near: Team, tmp_path: Path, small_packs: None) -> None:
    one, other = Machine(near, tmp_path / "one"), Machine(near, tmp_path / "other")
    digests = one.compile(range(3)) + one.compile(range(3, 5), size=200_000)
    push(one.tier, one.disk, "train", digests)
    assert pull(other.tier, other.disk, "train").entries == 5
    assert all(path.stat().st_size <= 100_000 for path in (tmp_path / "shared" / "v1" / "main" / "packs").iterdir())


@pytest.mark.parametrize("name", ["", "a/b", "..", ".x", "a b", "ä", "x" * 101])
def test_names_that_could_go_elsewhere_are_misuse(near: Team, tmp_path: Path, name: str) -> None:
    one = Machine(near, tmp_path / "one")
    with pytest.raises(UsageError):
        pull(one.tier, one.disk, name)
    with pytest.raises(UsageError):
        push(one.tier, one.disk, name, [])


def test_nothing_to_find_is_no_error(near: Team, tmp_path: Path) -> None:
    one = Machine(near, tmp_path / "one")
    assert pull(one.tier, one.disk, "train").as_dict() == {
        "entries": 0, "bytes": 0, "present": 0, "failed": 0, "gone": 0, "foreign": 0, "requests": 1, "unanswered": 0,
        "found": False,
    }  # fmt: skip
    with pytest.raises(UsageError, match="signing key"):
        push(near.machine(key=lambda: None), one.disk, "train", one.compile(range(1)))


def test_a_workload_in_two_scopes_is_counted_once_each(near: Team, tmp_path: Path) -> None:
    near.list.add(near.trusted.public, ["pr-7"])
    one, two = (Machine(near, tmp_path / scope, near.machine(scope=scope)) for scope in ("main", "pr-7"))
    push(one.tier, one.disk, "train", one.compile(range(3)))
    push(two.tier, two.disk, "train", two.compile(range(2, 7)))
    reader = Machine(near, tmp_path / "reader", near.machine(scope="pr-7,main"))
    done = pull(reader.tier, reader.disk, "train")
    assert (done.entries, done.present, done.failed) == (7, 1, 0)
    assert counted(reader.tier)["pulled"] == 7


def test_what_does_not_check_is_no_answer(near: Team, tmp_path: Path) -> None:
    one, other = Machine(near, tmp_path / "one", near.machine(signer=near.stranger)), Machine(near, tmp_path / "other")
    push(one.tier, one.disk, "train", one.compile(range(1)))
    done = pull(other.tier, other.disk, "train")
    assert (done.found, done.unanswered, done.requests) == (False, 1, 1)


def test_who_signs_and_trusts_nobody_adds_to_its_own_workload(near: Team, tmp_path: Path) -> None:
    writer = near.machine(signer=near.stranger)
    one = Machine(near, tmp_path / "one", writer)
    push(writer, one.disk, "train", one.compile(range(2)))
    push(writer, one.disk, "train", one.compile(range(2, 4)))
    near.list.add(near.stranger.public, ["main"])
    other = Machine(near, tmp_path / "other")
    assert pull(other.tier, other.disk, "train").entries == 4


def test_names_say_where_things_are() -> None:
    assert pack_name("main", "ab") == "v1/main/packs/ab"
    assert workload_name("pr-7", "train") == "v1/pr-7/workloads/train"
