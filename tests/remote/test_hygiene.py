"""Keeping a remote in shape: by age, size and scope, from listings; packs that are needed stay; revoking cleans up."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import hotstart
from hotstart.errors import UsageError
from hotstart.remote.contract import BrokenError, Found
from hotstart.remote.directory import Directory
from hotstart.remote.hygiene import collect, forget_signer
from hotstart.remote.pushing import push
from hotstart.remote.workloads import pull

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Team, key_of, make_entry
else:
    from machines import Team, key_of, make_entry

DAY = 86_400.0


def age(team: Team, pattern: str, seconds: float) -> None:
    """Make objects look older than they are."""
    then = time.time() - seconds
    for path in Path(team.url.removeprefix("file://")).glob(f"v1/{pattern}"):
        if path.is_file():
            os.utime(path, (then, then))


def names(team: Team) -> list[str]:
    return sorted(item.name.split("/")[2] for item in team.machine().remotes[0].list(""))


@pytest.fixture
def store(tmp_path: Path) -> hotstart.Cache:
    return hotstart.Cache(tmp_path / "store", memory=0)


def fill(team: Team, cache: hotstart.Cache, workload: str, numbers: range) -> None:
    for number in numbers:
        assert cache.put(key_of(number), {"cubin": os.urandom(2000)}, cost=1.0)
    assert cache.disk is not None
    push(team.machine(), cache.disk, workload, [key_of(number).digest for number in numbers])


def test_what_is_old_goes_what_is_young_stays(any_url: str, tmp_path: Path) -> None:
    team = Team(tmp_path, any_url)
    tier = team.machine()
    for number in range(5):
        assert tier.publish(make_entry(number))
    assert collect(tier, older_than=DAY).objects == 0
    later = time.time() + 2 * DAY
    would = collect(tier, older_than=DAY, dry_run=True, clock=lambda: later)
    assert (would.objects, would.left_objects) == (5, 0)
    assert names(team) == ["entries"] * 5
    done = collect(tier, older_than=DAY, clock=lambda: later)
    assert done.objects == 5
    assert done.bytes == would.bytes > 0
    assert names(team) == []


def test_packs_live_as_long_as_a_manifest_needs_them(near: Team, store: hotstart.Cache) -> None:
    fill(near, store, "old", range(5))
    fill(near, store, "new", range(5, 10))
    age(near, "main/packs/*", 9 * DAY)
    tier = near.machine()
    assert collect(tier, older_than=DAY).objects == 0
    age(near, "main/workloads/old", 9 * DAY)
    assert collect(tier, older_than=DAY).objects == 2
    assert names(near) == ["packs", "workloads"]
    with hotstart.Cache(store.path + "-2" if store.path else None, memory=0) as other:
        assert other.disk is not None
        assert pull(near.machine(), other.disk, "new").entries == 5


def test_orphaned_packs_and_stale_leases_go_always(near: Team, store: hotstart.Cache) -> None:
    fill(near, store, "train", range(5))
    tier = near.machine()
    tier.leases.seek(key_of(99).digest, 1.0)
    tier.remotes[0].delete(["v1/main/workloads/train"])
    assert collect(tier).objects == 0  # young: a push may be under way
    age(near, "main/*/*", 2 * DAY)
    age(near, "main/leases/*/*", 2 * DAY)
    assert collect(tier).objects == 2
    assert names(near) == []


def test_down_to_a_size_the_oldest_first(near: Team, store: hotstart.Cache) -> None:
    fill(near, store, "train", range(5))
    tier = near.machine()
    entries = [make_entry(number, {"cubin": os.urandom(5000)}) for number in range(100, 110)]
    for number, entry in enumerate(entries):
        assert tier.publish(entry)
        age(near, f"main/entries/{entry.digest[:2]}/{entry.digest}", (20 - number) * DAY)
    total = collect(tier, dry_run=True).left_bytes
    done = collect(tier, max_size=total - 3 * 5000)
    assert done.left_bytes <= total - 3 * 5000
    left = [near.machine().read(entry.digest) is not None for entry in entries]
    assert left == [False] * done.objects + [True] * (10 - done.objects)
    assert 3 <= done.objects <= 4
    age(near, "main/workloads/train", 90 * DAY)
    assert collect(tier, max_size=0).left_objects == 0


def test_one_scope_at_a_time(near: Team) -> None:
    near.list.add(near.trusted.public, ["pr-*"])
    for scope in ("main", "pr-1", "pr-2"):
        assert near.machine(scope=scope).publish(make_entry(1))
    age(near, "*/entries/*/*", 9 * DAY)
    assert collect(near.machine(), older_than=DAY, scopes=["pr-1"]).objects == 1
    assert [item.name.split("/")[1] for item in near.machine().remotes[0].list("")] == ["main", "pr-2"]
    with pytest.raises(UsageError):
        collect(near.machine(), scopes=["../main"])
    with pytest.raises(UsageError):
        collect(near.machine(), older_than=-1)


def test_revoking_removes_what_came_from_that_key_and_nothing_else(near: Team, tmp_path: Path) -> None:
    with hotstart.Cache(tmp_path / "one", memory=0) as one, hotstart.Cache(tmp_path / "two", memory=0) as two:
        assert one.disk is not None and two.disk is not None
        fill(near, one, "train", range(6))
        assert two.put(key_of(50), {"cubin": b"made here"})
        assert pull(near.machine(), two.disk, "train").entries == 6
        near.list.revoke(near.trusted.id)
        assert len(forget_signer(two.disk, near.trusted.id, dry_run=True)) == 6
        assert len(two) == 7
        assert len(forget_signer(two.disk, near.trusted.id)) == 6
        assert two.get(key_of(50)) is not None
        assert two.get(key_of(1)) is None
        assert forget_signer(one.disk, near.trusted.id) == []  # made there, not received
        assert not pull(near.machine(), two.disk, "train").found


class Unreadable(Directory):
    """Manifests cannot be read."""

    def get(self, name: str, limit: int) -> Found:
        if "/workloads/" in name:
            raise BrokenError("it answers with status 500", "http_500")
        return super().get(name, limit)


@pytest.mark.parametrize("limits", [{}, {"max_size": 0}, {"older_than": 3 * DAY}])
def test_a_manifest_that_cannot_be_read_keeps_the_packs_of_its_scope(
    near: Team, store: hotstart.Cache, limits: dict[str, float]
) -> None:
    fill(near, store, "train", range(5))
    age(near, "main/packs/*", 9 * DAY)
    tier = near.machine()
    tier.remotes[0].inner = Unreadable(near.url.removeprefix("file://"))
    done = collect(tier, **limits)  # type: ignore[arg-type]
    assert (done.objects, done.unread) == (0, 1)
    assert names(near) == ["packs", "workloads"]


def test_a_manifest_of_a_key_that_is_not_trusted_here_keeps_the_packs_of_its_scope_only(
    near: Team, store: hotstart.Cache
) -> None:
    fill(near, store, "train", range(5))
    assert store.disk is not None
    push(near.machine(scope="pr-7", signer=near.stranger), store.disk, "train", [key_of(1).digest])
    age(near, "*/packs/*", 9 * DAY)
    tier = near.machine()
    tier.remotes[0].delete(["v1/main/workloads/train"])
    done = collect(tier)
    assert (done.objects, done.unread) == (1, 1)
    assert [item.name.split("/")[1] for item in tier.remotes[0].list("")] == ["pr-7", "pr-7"]
    age(near, "pr-7/workloads/*", 9 * DAY)
    assert collect(tier, older_than=DAY).objects == 2


def test_who_signs_and_trusts_nobody_keeps_what_its_own_manifests_need(near: Team, store: hotstart.Cache) -> None:
    fill(near, store, "train", range(5))
    age(near, "main/packs/*", 9 * DAY)
    writer = near.machine(signer=near.stranger)
    assert store.disk is not None
    push(writer, store.disk, "other", [key_of(1).digest])
    done = collect(writer)
    assert (done.objects, done.unread) == (0, 0)
