"""Packages are built once, by helpers that outlive who asked for them and may die at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hotstart.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torch.hot_children import HERE, RANKS, child, records, start_ranks
else:
    from hot_children import HERE, RANKS, child, records, start_ranks

pytest.importorskip("torch", reason="needs torch (any build, no GPU)")

AFTERWARDS = """
import os, sys, torch
import hotstart.torch
sys.path.insert(0, os.environ["HOTSTART_HOME"])
import generated
torch.set_num_threads(1)
model = generated.model()
compiled = hotstart.torch.compile(model)
x = torch.ones(4, 4) * 2
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x))
assert "torch._dynamo" not in sys.modules
"""


def test_ranks_that_start_together_build_one_package(ranks: Path) -> None:
    events = [line["event"] for line in records(ranks)]
    assert events.count("handed") == 1
    assert events.count("published") == 1
    assert events[: events.index("published")].count("skipped") == RANKS - 1
    assert len(Cache(ranks / "store")) == 1


def test_the_helper_outlives_the_process_and_leaves_nothing_behind(ranks: Path) -> None:
    run = child(ranks, AFTERWARDS)
    assert run.returncode == 0, run.stderr
    assert [path.name for path in (ranks / "torch" / "jobs").iterdir()] == []


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as it is handed to a helper, with no helper started."""
    home = tmp_path_factory.mktemp("job")
    stop = "import hotstart.torch.jobs as jobs, os\njobs.Job.start = lambda self, cache, wait: self._keep()\n"
    stop += "jobs.Job._keep = lambda self: setattr(self, 'fd', (os.close(self.fd), -1)[1])\n"
    start_ranks(home, 1, stop)
    assert [line["event"] for line in records(home)] == ["handed"]
    return home


#: Exports and hands over as any process does, and waits for the helper; says where it is.
PARENT = """
import os, sys, torch, torch._dynamo, torch.export
import hotstart.torch
import hotstart.torch.promotion as promotion, hotstart.torch.jobs as jobs
sys.path.insert(0, os.environ["HOTSTART_HOME"])
import generated
torch.set_num_threads(1)
model = generated.model()
compiled = hotstart.torch.compile(model, promote="now")
compiled._engine._plain = lambda *args: model(*args)
os.set_inheritable(1, False)
def telling(what, function):
    def told(*args, **kwargs):
        print(what, flush=True)
        return function(*args, **kwargs)
    return told
jobs.claim = telling("claim", jobs.claim)
promotion.export = telling("export", promotion.export)
promotion.hand_over = telling("hand over", promotion.hand_over)
jobs.Job.start = telling("start", jobs.Job.start)
with torch.no_grad():
    compiled(torch.ones(4, 4))
print("end", flush=True)
"""

#: Where the process is when it is killed, and how many seconds later at most; most of the moments are the helper's.
MOMENTS = (("claim", 0.3), ("export", 0.5), ("hand over", 0.1), ("start", 0.05), ("start", 5.0), ("start", 24.0))


def test_a_process_killed_at_any_moment_leaves_no_broken_entry(job: Path, tmp_path: Path, scale: int) -> None:
    """HOTSTART_TEST_SCALE=50 kills fifty; each scale has moments of its own. Killed with all of its children.

    Afterwards the store is whole, nobody holds the lock, and the next start hands over again or hits.
    """
    chance = random.Random(scale)
    moments = [MOMENTS[number % len(MOMENTS)] for number in range(scale)]
    for number, (place, longest) in enumerate(moments):
        home = tmp_path / str(number)
        home.mkdir()
        shutil.copy(job / "generated.py", home)
        killed_at = kill_after(home, place, chance.uniform(0, longest))
        cache = Cache(home / "store")
        assert cache.verify()["damaged"] == [], killed_at
        published = sum(line["event"] == "published" for line in records(home))
        assert len(cache) in (published, 1), killed_at
        left = sorted(path.name.partition(".")[2] for path in (home / "torch" / "jobs").iterdir())
        assert set(left) <= {"", "lock", "tries"}, left
        assert len(left) <= 3, left
        if number % 10 == 0:  # ten seconds each
            again = child(home, STOPPED + PARENT)
            assert again.stdout.split()[-1:] == ["end"], again.stderr
            assert records(home)[-1]["event"] in ("handed", "hit"), records(home)
            assert list((home / "torch" / "jobs").iterdir()) == []
        shutil.rmtree(home, ignore_errors=True)


STOPPED = "import hotstart.torch.jobs as jobs\njobs.Job.start = lambda self, cache, wait: self.release()\n"


def kill_after(home: Path, place: str, seconds: float) -> str:
    """Kill a process and all that it started, so long after it came to this place; where that was."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == place:
            break
    time.sleep(seconds)
    for pid in {process.pid, *helpers_of(home)}:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 60
    while helpers_of(home) and time.monotonic() < deadline:
        time.sleep(0.2)
    return f"{seconds:.2f} s after {place}"


def helpers_of(home: Path) -> list[int]:
    """The helper of this home, and its children."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(home / "torch" / "jobs").encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOTSTART_HOME": str(home), "PYTHONPATH": str(HERE)}


def test_a_helper_alone_may_be_killed_too(job: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(job, home)
    folder = next(path for path in (home / "torch" / "jobs").iterdir() if path.is_dir())
    (folder / "cache.json").write_text(json.dumps({"path": str(home / "store")}))
    helper = start_helper(home, folder)
    try:
        helper.wait(timeout=random.Random().uniform(0, 10))
    except subprocess.TimeoutExpired:
        os.killpg(helper.pid, signal.SIGKILL)
        helper.wait()
    cache = Cache(home / "store")
    assert cache.verify()["damaged"] == []


def test_what_was_left_long_ago_is_swept_and_what_is_held_is_not(
    tmp_path: Path, cache_of: Callable[[Path], Cache]
) -> None:
    from hotstart.keys.key import Key
    from hotstart.torch import jobs

    cache = cache_of(tmp_path)
    held = jobs.claim(cache, Key("torch", name="held"))
    killed = jobs.claim(cache, Key("torch", name="killed"))
    assert isinstance(held, jobs.Job)
    assert isinstance(killed, jobs.Job)
    place = tmp_path / "torch" / "jobs"
    for job in (held, killed):
        os.makedirs(job.folder)
        (Path(job.folder) / "program.pt2").write_bytes(b"x")
    os.close(killed.fd)  # as the kernel does it for a process that is killed
    (place / "forgotten.failed").write_text("{}")
    (place / "fresh.failed").write_text("{}")
    long_ago = time.time() - 40 * 86400
    for path in place.iterdir():
        if path.name != "fresh.failed":
            os.utime(path, (long_ago, long_ago))
    jobs.sweep()
    assert {path.name.partition(".")[0] for path in place.iterdir()} == {Path(held.folder).name, "fresh"}
    assert (Path(held.folder) / "program.pt2").exists()
    held.release()


def test_after_a_kill_the_next_start_hands_over_again(job: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(job, home)
    folder = next(path for path in (home / "torch" / "jobs").iterdir() if path.is_dir())
    (folder / "cache.json").write_text(json.dumps({}))
    helper = start_helper(home, folder)
    time.sleep(2)
    os.killpg(helper.pid, signal.SIGKILL)
    helper.wait()
    stop = "import hotstart.torch.jobs as jobs\njobs.Job.start = lambda self, cache, wait: self.release()\n"
    start_ranks(home, 1, stop)
    assert [line["event"] for line in records(home)].count("handed") == 2


def test_at_exit_the_call_is_exported_as_it_was_made(tmp_path: Path) -> None:
    code = """
import torch, hotstart.torch
import hotstart.torch.jobs as jobs
jobs.Job.start = lambda self, cache, wait: self.release()
def step(x):
    return torch.sin(x) * 3
compiled = hotstart.torch.compile(step, promote="exit")
compiled._engine._plain = torch.compile(step, backend="eager")
with torch.inference_mode():
    compiled(torch.ones(3))
assert hotstart.torch.records() == []
"""
    run = child(tmp_path, code)
    assert run.returncode == 0, run.stderr
    assert [line["event"] for line in records(tmp_path)] == ["handed"], records(tmp_path)


def start_helper(home: Path, folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "HOTSTART_HOME": str(home), "PYTHONPATH": str(HERE)}
    return subprocess.Popen(
        [sys.executable, "-m", "hotstart.torch.promote", str(folder)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def test_a_helper_that_is_killed_each_time_is_not_started_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_of: Callable[[Path], Cache]
) -> None:
    from hotstart.keys.key import Key
    from hotstart.torch import jobs

    cache = cache_of(tmp_path)
    key = Key("torch", name="test")
    for tried in range(4):
        claimed = jobs.claim(cache, key)
        if tried == 3:
            assert isinstance(claimed, str)
            assert "killed" in claimed
            break
        assert isinstance(claimed, jobs.Job)
        assert jobs.claim(cache, key) == "another process is building it"
        os.close(claimed.fd)  # as the kernel does it for a process that is killed


def test_what_failed_is_not_tried_again_with_the_same_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_of: Callable[[Path], Cache]
) -> None:
    from hotstart.keys.key import Key
    from hotstart.torch import jobs, marks

    cache = cache_of(tmp_path)
    key = Key("torch", name="test")
    claimed = jobs.claim(cache, key)
    assert isinstance(claimed, jobs.Job)
    marks.fail(claimed.folder, "it crashes")
    claimed.release()
    assert jobs.claim(cache, key) == "it was tried before: it crashes"
    monkeypatch.setenv("CXX", "another")
    again = jobs.claim(cache, key)
    assert isinstance(again, jobs.Job)
    again.release()
