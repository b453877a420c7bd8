"""Requests: what docs/operations.md says that a start, a compile and a push cost is what they cost."""

from __future__ import annotations

from pathlib import Path

import pytest

import hotstart
from hotstart.remote import packs, pushing
from hotstart.remote.pushing import push
from hotstart.remote.workloads import pull

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Machine, Team, key_of
else:
    from machines import Machine, Team, key_of


def test_a_compile_that_nobody_has_done(team: Team, tmp_path: Path) -> None:
    """The entry is asked for before and after the lease is taken; on object stores two leases are two requests."""
    asked_for_leases = 1 if team.url.startswith("redis") else 2
    with hotstart.Cache(
        tmp_path / "writer", remote=team.url, trust=team.list.path, signing_key=str(tmp_path / "trusted.key")
    ) as writer:
        writer.get_or_compile(key_of(1), lambda: {"cubin": b"x"})
        assert writer.sharing is not None and writer.sharing.tier is not None
        assert writer.sharing.tier.flush()
        assert writer.stats()["remote"]["requests"] == 1 + asked_for_leases + 1 + 1 + 1 + 1
    with hotstart.Cache(
        tmp_path / "reader", remote=f"{team.url}{'&' if '?' in team.url else '?'}read_only=1", trust=team.list.path
    ) as reader:
        reader.get_or_compile(key_of(1), lambda: {"cubin": b"x"})
        assert reader.stats()["remote"]["requests"] == 1
        reader.get_or_compile(key_of(2), lambda: {"cubin": b"x"})
        assert reader.stats()["remote"]["requests"] == 2


def test_pushes_and_pulls(team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "_LARGEST_MEMBERS", 10_000)
    monkeypatch.setattr(pushing, "_SMALL_PACK", 0)
    one, other = Machine(team, tmp_path / "one"), Machine(team, tmp_path / "other")
    digests = one.compile(range(16))
    first = push(one.tier, one.disk, "train", digests)
    number = len(list(one.tier.remotes[0].list("v1/main/packs/")))
    assert number == 6
    assert first.requests == 1 + number + 1
    in_one = team.url.startswith("redis")
    assert push(one.tier, one.disk, "train", digests).requests == 1 + (1 if in_one else number)
    assert pull(other.tier, other.disk, "train").requests == 1 + number
    assert pull(other.tier, other.disk, "train").requests == 1
    monkeypatch.setattr(pushing, "_ASK_FROM", 0)
    assert push(one.tier, one.disk, "other", digests).requests == 1 + number + 1, "all are there"
    fresh = Machine(team, tmp_path / "fresh")
    assert push(fresh.tier, fresh.disk, "fresh", fresh.compile(range(16, 20), size=3000)).requests == 1 + 1 + 2 + 1
