"""Single flight across hosts: the state machine by itself, and leases on real remotes, holders that die included."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hotstart.remote import flight
from hotstart.remote.flight import ALONE, CREATE, DONE, LEAD, LOOK, PAUSE, PEEK, SURVEY, Seeker
from hotstart.remote.leases import Lease
from hotstart.store.entry import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Team, counted, key_of, make_entry, same
else:
    from machines import Team, counted, key_of, make_entry, same


def seeker(lease: float = 10.0, patience: float = 100.0) -> Seeker:
    return Seeker(0.0, lambda: 0.5, lease=lease, patience=patience)


def test_the_first_leads() -> None:
    one = seeker()
    assert (one.step, one.number) == (PEEK, 1)
    one.told_peek(0.0, False, False)
    assert (one.step, one.number) == (CREATE, 1)
    one.told_create(0.0, True)
    assert one.step == LOOK
    one.told_look(0.0, False)
    assert (one.step, one.number, one.created) == (LEAD, 1, 1)


def test_who_comes_second_waits_and_finds() -> None:
    one = seeker()
    one.told_peek(0.0, True, False)
    assert one.step == PAUSE
    one.told_pause(0.1)
    assert one.step == LOOK
    one.told_look(0.1, True)
    assert (one.step, one.created) == (DONE, 0)


def test_who_loses_the_race_to_create_waits() -> None:
    one = seeker()
    one.told_peek(0.0, False, False)
    one.told_create(0.0, False)
    assert (one.step, one.number) == (PEEK, 1)


def test_a_lease_got_after_the_entry_was_published_finds_it() -> None:
    one = seeker()
    one.told_peek(0.0, False, False)
    one.told_create(0.0, True)
    one.told_look(0.0, True)
    assert (one.step, one.created) == (DONE, 1)


def test_leases_that_vanish_without_an_entry_mean_alone() -> None:
    one = seeker()
    one.told_peek(0.0, True, False)
    one.told_pause(0.1)
    one.told_look(0.1, False)
    assert one.step == PAUSE  # the leases are looked after less often than the entry
    one.told_pause(5.0)
    one.told_look(5.0, False)
    assert one.step == PEEK
    one.told_peek(5.0, False, False)
    assert one.step == LOOK
    one.told_look(5.1, False)
    assert (one.step, one.why) == (ALONE, "vanished")


def test_a_busy_remote_is_asked_again_later_and_not_for_ever() -> None:
    one, now = seeker(patience=30.0), 0.0
    one.told_busy(now)
    while one.step == PAUSE:
        now += one.number
        one.told_pause(now)
        assert one.step == LOOK
        one.told_look(now, False)
        if one.step in (PEEK, CREATE):
            one.told_busy(now)
        if now >= 30.0:
            break
    assert now < 31.0


def wait_on(one: Seeker, renewed: Callable[[float], int], until: float) -> float:
    """Look on while the holder is at ``renewed(now)``; the time at which something else than waiting is to be done."""
    now = 0.0
    highest = renewed(now)
    one.told_peek(now, True, highest > one.number)
    while now < until:
        if one.step == PAUSE:
            assert one.number >= 0
            now += one.number + 1e-3
            one.told_pause(now)
        elif one.step == LOOK:
            one.told_look(now, False)
        elif one.step == PEEK:
            one.told_peek(now, True, renewed(now) > one.number)
        elif one.step == SURVEY:
            one.told_survey(now, renewed(now))
        else:
            return now
    return now


def test_a_dead_holder_is_taken_over_when_its_time_is_up() -> None:
    one = seeker(lease=10.0)
    now = wait_on(one, lambda _: 1, 60.0)
    assert (one.step, one.number) == (CREATE, 2)
    assert 10.0 <= now < 10.1


def test_a_holder_that_renews_is_waited_for() -> None:
    one = seeker(lease=10.0, patience=95.0)
    now = wait_on(one, lambda now: 1 + int(now / flight.renewal_after(10.0)), 200.0)
    assert (one.step, one.why) == (ALONE, "patience")
    assert 95.0 <= now < 96.0


def test_looks_get_rarer() -> None:
    one = seeker(lease=20.0, patience=1000.0)
    looks = 0

    def renewed(now: float) -> int:
        nonlocal looks
        looks += 1
        return 1 + int(now / 5)

    wait_on(one, renewed, 300.0)
    assert looks < 200


def test_a_stale_lease_far_up_is_found_in_one_survey() -> None:
    one = seeker()
    one.told_peek(0.0, True, True)
    assert one.step == SURVEY
    one.told_survey(0.0, 57)
    assert one.step == PAUSE
    one.told_pause(20.0)
    one.told_look(20.0, False)
    one.told_peek(20.0, True, False)
    assert (one.step, one.number) == (CREATE, 58)


# -- on real remotes -----------------------------------------------------------


def get_or_compile(team: Team, number: int, compiled: list[int], lease: float = 20.0, seconds: float = 0.3) -> Entry:
    """What ``Cache`` does with a tier, on a host of its own."""
    tier = team.machine(lease=lease)
    digest = key_of(number).digest
    entry = tier.read(digest)
    if entry is not None:
        return entry
    found = tier.leases.seek(digest, 60.0)
    if found is not None and not isinstance(found, Lease):
        return found
    time.sleep(seconds)
    compiled.append(number)
    made = make_entry(number)
    tier.offer(made)
    if found is not None:
        found.release()
    assert tier.flush(60)
    return made


def test_hosts_that_want_the_same_compile_it_once(team: Team, hang_guard: None) -> None:
    compiled: list[int] = []
    results: list[tuple[int, Entry]] = []

    def host(order: int) -> None:
        order_of_its_own = random.Random(order).sample(range(3), 3)
        results.extend((number, get_or_compile(team, number, compiled)) for number in order_of_its_own)

    threads = [threading.Thread(target=host, args=(order,)) for order in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(compiled) == [0, 1, 2]
    assert len(results) == 18
    assert all(same(entry, make_entry(number)) or entry.cost == 1.5 for number, entry in results)
    left = [item.name for item in team.machine().remotes[0].list("v1/main/leases/")]
    assert left == []


HOLDER = """
import sys, time
sys.path.insert(0, {here!r})
from pathlib import Path
from machines import key_of
from hotstart.remote.tier import open_tier
from hotstart.store.counters import Counters
directory = {directory!r}
tier = open_tier({url!r}, Counters(), trust=f"{{directory}}/trusted.keys", signing_key=f"{{directory}}/trusted.key")
tier.leases.lease = 2.0
assert tier.leases.seek(key_of(1).digest, 10.0) is not None
print("ready", flush=True)
time.sleep(100)
"""


def test_a_holder_that_is_killed_is_taken_over(team: Team, hang_guard: None) -> None:
    program = HOLDER.format(here=str(Path(__file__).parent), directory=str(team.directory), url=team.url)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        holder.kill()
    compiled: list[int] = []
    threads = [
        threading.Thread(target=get_or_compile, args=(team, 1, compiled, 2.0)) for _ in range(4)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiled == [1]


def test_a_holder_that_lives_longer_than_its_lease_renews_it(near: Team, hang_guard: None) -> None:
    compiled: list[int] = []
    threads = [
        threading.Thread(target=get_or_compile, args=(near, 1, compiled, 0.6, 2.5)) for _ in range(3)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiled == [1]


def test_when_the_holder_fails_nobody_waits_on(near: Team, hang_guard: None) -> None:
    one, other = near.machine(lease=1.0), near.machine(lease=1.0)
    digest = key_of(1).digest
    lease = one.leases.seek(digest, 10.0)
    assert isinstance(lease, Lease)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(other.leases.seek(digest, 60.0)))
    thread.start()
    time.sleep(0.3)
    lease.release()
    thread.join()
    assert found == [None]
    assert counted(other, "remote.flight.") == {"alone_vanished": 1}


def test_who_cannot_write_does_not_wait(near: Team) -> None:
    lease = near.machine().leases.seek(key_of(1).digest, 10.0)
    assert isinstance(lease, Lease)
    assert near.machine(url=f"{near.url}?read_only=1").leases.seek(key_of(1).digest, 60.0) is None
    assert near.machine(key=lambda: None).leases.seek(key_of(1).digest, 60.0) is None


def test_a_remote_that_fails_means_alone(near: Team, tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("in the way")
    tier = near.machine()
    assert tier.leases.seek(key_of(1).digest, 60.0) is None
