"""The tier between machines: what one publishes another reads, checked; chains, misses remembered, the way out."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from hotstart.remote import tier as tier_module
from hotstart.remote.contract import AbsentError
from hotstart.remote.directory import Directory
from hotstart.remote.leases import Lease
from hotstart.remote.queue import MOST_JOBS, Queue
from hotstart.remote.tier import entry_name
from hotstart.remote.url import open_remote
from hotstart.store.counters import Counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Team, counted, make_entry, same
else:
    from machines import Team, counted, make_entry, same


@pytest.mark.parametrize(
    "artifacts",
    [
        {"cubin": b"code"},
        {"empty": b""},
        {"a/b/c.so": b"\x7fELF" * 1000, "Ünï ☃": b"x", "\ud800": b"y"},
        {"large": random.Random(1).randbytes(700_000), "text": b"abc" * 100_000},
    ],
    ids=["one", "empty", "names", "large"],
)
def test_what_one_machine_publishes_another_reads(team: Team, artifacts: dict[str, bytes]) -> None:
    entry = make_entry(1, artifacts, options=["-O3"], log="fine")
    writer = team.machine()
    assert writer.offer(entry)
    assert writer.flush(30)
    reader = team.machine()
    found = reader.read(entry.digest)
    assert same(found, entry)
    assert found is not None and found.tier == "remote"
    assert found.provenance == entry.provenance | {"signer": team.trusted.id, "scope": "main"}
    assert reader.statistics()["requests"] == 1
    assert (reader.hits, reader.saved) == (1, 1.5)
    assert counted(writer)["puts"] == 1


def test_text_is_compressed_on_the_way(near: Team) -> None:
    entry = make_entry(1, {"ptx": b"mov.u32 %r1, %r2;\n" * 10_000})
    writer = near.machine()
    assert writer.publish(entry)
    assert counted(writer)["bytes_written"] < entry.size / 20


def test_large_entries_come_in_parts(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_module, "FIRST_READ", 100_000)
    monkeypatch.setattr(tier_module, "_PART", 150_000)
    entry = make_entry(1, {"so": random.Random(1).randbytes(900_000)})
    assert team.machine().publish(entry)
    reader = team.machine()
    assert same(reader.read(entry.digest), entry)
    assert reader.statistics()["requests"] == 1 + 6


def test_what_is_there_is_left_alone(team: Team) -> None:
    entry = make_entry(1)
    one, other = team.machine(), team.machine()
    assert one.publish(entry)
    assert other.publish(make_entry(1, {"cubin": b"another build"}))
    assert counted(other) == {"already_there": 1}
    assert same(team.machine().read(entry.digest), entry)


def test_a_miss_is_remembered_briefly(near: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = make_entry(1)
    reader = near.machine()
    assert reader.read(entry.digest) is None
    assert reader.read(entry.digest) is None
    assert reader.statistics()["requests"] == 1
    assert near.machine().publish(entry)
    assert reader.read(entry.digest) is None
    assert same(reader.read(entry.digest, fresh=True), entry)
    monkeypatch.setattr(tier_module, "NEGATIVE", 0.0)
    other = make_entry(2)
    assert reader.read(other.digest) is None
    assert near.machine().publish(other)
    assert same(reader.read(other.digest), other)


def test_its_own_publication_ends_a_remembered_miss(near: Team) -> None:
    entry, machine = make_entry(1), near.machine()
    assert machine.read(entry.digest) is None
    assert machine.publish(entry)
    assert same(machine.read(entry.digest), entry)


def test_a_far_hit_fills_the_near_remote(near: Team, tmp_path: Path, redis_url: str) -> None:
    entry, large = make_entry(1), make_entry(2, {"so": random.Random(1).randbytes(50_000)})
    writer = near.machine()
    assert writer.publish(entry) and writer.publish(large)
    chain = f"{redis_url}&max_value=10000,{near.url}"
    reader = near.machine(url=chain)
    assert same(reader.read(entry.digest), entry)
    assert same(reader.read(large.digest), large)
    assert reader.flush(30)
    redis = open_remote(redis_url)
    assert redis.get(entry_name("main", entry.digest), 1).size > 0
    with pytest.raises(AbsentError):
        redis.get(entry_name("main", large.digest), 1)
    # From now on the near one answers alone.
    assert same(near.machine(url=redis_url).read(entry.digest), entry)


def test_a_chain_is_written_whole_but_for_what_is_read_only_or_too_small(near: Team, tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/a", f"file://{tmp_path}/b?read_only=1", f"file://{tmp_path}/c"]
    entry = make_entry(1)
    assert near.machine(url=",".join(urls)).publish(entry)
    there = [same(near.machine(url=url).read(entry.digest), entry) for url in urls]
    assert there == [True, False, True]


def test_a_value_over_the_limit_goes_to_the_object_tier_alone(near: Team, redis_url: str) -> None:
    small, large = make_entry(1), make_entry(2, {"so": random.Random(1).randbytes(50_000)})
    writer = near.machine(url=f"{redis_url}&max_value=10000,{near.url}")
    assert writer.publish(small) and writer.publish(large)
    assert "refused.oversize" not in counted(writer)
    there = {
        url: [same(near.machine(url=url).read(entry.digest), entry) for entry in (small, large)]
        for url in (redis_url, near.url)
    }
    assert there == {redis_url: [True, False], near.url: [True, True]}


def test_scopes_are_read_in_order_and_only_the_first_is_written(near: Team) -> None:
    near.list.add(near.trusted.public, ["pr-*"])
    mine, theirs = make_entry(1, {"x": b"mine"}), make_entry(1, {"x": b"main"})
    assert near.machine(scope="main").publish(theirs)
    both = near.machine(scope="pr-7,main")
    assert same(both.read(mine.digest), theirs)
    assert both.publish(mine)
    assert same(both.read(mine.digest), mine)
    assert same(near.machine(scope="main").read(mine.digest), theirs)
    assert near.machine(scope="pr-8").read(mine.digest) is None


def test_without_a_key_nothing_is_published(near: Team) -> None:
    entry = make_entry(1)
    machine = near.machine(key=lambda: None)
    assert not machine.writable
    assert not machine.offer(entry)
    assert list(Directory(near.url.removeprefix("file://")).list("")) == []


def test_what_came_from_a_remote_is_not_signed_again(near: Team) -> None:
    """Else a trusted machine that reads ``pr-7`` would launder it into ``main``."""
    near.list.add(near.stranger.public, ["pr-*"])
    entry = make_entry(1)
    assert near.machine(scope="pr-7", signer=near.stranger).publish(entry)
    found = near.machine(scope="main,pr-7").read(entry.digest)
    assert found is not None
    main = near.machine(scope="main")
    assert not main.offer(found)
    assert main.read(entry.digest) is None


def test_an_entry_too_large_is_neither_sent_nor_taken(near: Team) -> None:
    entry = make_entry(1, {"so": bytes(200_000)})
    assert near.machine().publish(entry)
    small = near.machine(limit=100_000)
    assert small.read(entry.digest) is None
    assert counted(small, "remote.rejected.") == {"oversize": 1}
    assert not small.offer(entry)


def test_the_queue_is_bounded_and_drops_are_counted() -> None:
    counters, hold = Counters(), threading.Event()
    queue = Queue(counters)
    assert queue.add(hold.wait)
    accepted = sum(queue.add(lambda: None) for _ in range(2 * MOST_JOBS))
    assert MOST_JOBS - 1 <= accepted <= MOST_JOBS
    assert counters.snapshot()["remote.dropped"] == 2 * MOST_JOBS - accepted
    assert not queue.add(lambda: None, 1 << 40)
    hold.set()
    assert queue.flush(30)
    assert queue.add(lambda: None, 1 << 40)  # alone it is let through, whatever its size
    assert queue.flush(30)


def test_an_end_does_not_wait_for_ever() -> None:
    counters, hold = Counters(), threading.Event()
    queue = Queue(counters)
    queue.add(hold.wait)
    queue.add(lambda: None)
    assert not queue.flush(0.05)
    assert counters.snapshot()["remote.dropped"] >= 1
    hold.set()


def test_a_job_that_fails_does_not_end_the_others() -> None:
    counters, done = Counters(), threading.Event()
    queue = Queue(counters)
    queue.add(lambda: 1 / 0)
    queue.add(done.set)
    assert queue.flush(30)
    assert done.is_set()
    assert counters.snapshot()["remote.failed.ZeroDivisionError"] == 1


@pytest.mark.parametrize("skew", [-600, 600, 10 * 365 * 86_400])
def test_a_clock_that_is_off_changes_nothing(team: Team, skew: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are shown to people; what counts as expired is judged by each machine's own running clock alone."""
    entry = make_entry(1)
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + skew)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + skew * 10**9)
    writer = team.machine()
    lease = writer.leases.seek(entry.digest, 5.0)
    assert isinstance(lease, Lease)
    assert writer.publish(entry)
    lease.release()
    assert writer.flush(30)
    monkeypatch.setattr(time, "time", real)
    monkeypatch.setattr(time, "time_ns", real_ns)
    assert same(team.machine().read(entry.digest), entry)


def test_a_list_that_cannot_be_read_is_said_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from hotstart.remote.tier import open_tier
    from hotstart.store.counters import Counters

    (tmp_path / "keys").write_text("nonsense\n")
    (tmp_path / "keys").chmod(0o600)
    options = {"trust": str(tmp_path / "keys"), "read_only": True}
    open_tier(f"file://{tmp_path}/shared", Counters(), **options)  # type: ignore[arg-type]
    said = capfd.readouterr().err
    assert (said.count("\n"), "keys, line 1" in said, "trusts no key" in said) == (1, True, False)
