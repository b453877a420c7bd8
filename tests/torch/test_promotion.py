"""Packages are built once, by helpers that outlive who asked for them and may die at any moment."""

from __future__ import annotations

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


def test_a_helper_killed_at_any_moment_leaves_no_broken_entry(job: Path, tmp_path: Path, scale: int) -> None:
    """HOTSTART_TEST_SCALE=50 kills fifty; each scale has moments of its own."""
    chance = random.Random(scale)
    kills = 0
    longest = 24.0
    for number in range(scale):
        home = tmp_path / str(number)
        shutil.copytree(job, home)
        folder = next(path for path in (home / "torch" / "jobs").iterdir() if path.is_dir())
        (folder / "cache.json").write_text(json.dumps({"path": str(home / "store")}))
        helper = start_helper(home, folder)
        try:
            helper.wait(timeout=chance.uniform(0, longest))
        except subprocess.TimeoutExpired:
            os.killpg(helper.pid, signal.SIGKILL)
            helper.wait()
            kills += 1
        cache = Cache(home / "store")
        assert cache.verify()["damaged"] == []
        assert len(cache) == sum(line["event"] == "published" for line in records(home)) or len(cache) == 1
        shutil.rmtree(home, ignore_errors=True)
    assert kills or scale == 1


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
        jobs._write(f"{claimed.folder}.tries", str(tried + 1))
        claimed.release()


def test_what_failed_is_not_tried_again_with_the_same_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_of: Callable[[Path], Cache]
) -> None:
    from hotstart.keys.key import Key
    from hotstart.torch import jobs

    cache = cache_of(tmp_path)
    key = Key("torch", name="test")
    claimed = jobs.claim(cache, key)
    assert isinstance(claimed, jobs.Job)
    jobs.fail(claimed.folder, "it crashes")
    claimed.release()
    assert jobs.claim(cache, key) == "it was tried before: it crashes"
    monkeypatch.setenv("CXX", "another")
    again = jobs.claim(cache, key)
    assert isinstance(again, jobs.Job)
    again.release()
