"""TuningCache: nobody sees another's timings, nobody loses any, and nothing is measured twice."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotstart import Cache, HotstartError, Key, UsageError
from hotstart.compilers import devices
from hotstart.compilers.space import Space
from hotstart.compilers.tuning import Tuning, TuningCache
from hotstart.keys.digest import encode
from hotstart.testing import FailingIO

Fork = Callable[..., Any]

SPACE = [{"block": block, "warps": warps} for block in (32, 64, 128) for warps in (4, 8)]
ABOUT: dict[str, Any] = {"tuner": "bench 1", "toolchain": "triton 3.9", "device": "NVIDIA H200", "driver": "580.65"}


def seconds(config: dict[str, int]) -> float:
    """A pretended kernel: fastest at block 64 with 8 warps."""
    return abs(config["block"] - 64) / 1000 + 1 / config["warps"]


BEST = {"block": 64, "warps": 8}


class Measure:
    """Counts what it measures; in a file, so that other processes count too."""

    def __init__(self, path: Path, takes: float = 0.0) -> None:
        self.path = path
        self.takes = takes

    def __call__(self, config: dict[str, int]) -> float:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, json.dumps(config).encode() + b"\n")
        os.close(fd)
        time.sleep(self.takes)
        return seconds(config)

    @property
    def calls(self) -> int:
        return len(self.path.read_text().splitlines()) if self.path.exists() else 0


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    return Measure(tmp_path / "measured")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def tuning(root: Path | None, **changes: Any) -> TuningCache:
    options = changes.pop("cache", {})
    return TuningCache(Cache(root, **options), **{**ABOUT, **changes})


def summary(found: Tuning | None) -> Any:
    return None if found is None else (found.best, found.seconds, found.timings, found.failed, found.untried)


# -- what it is for -----------------------------------------------------------------------


def test_the_fastest_is_found_once_and_known_to_every_process(root: Path, measure: Measure) -> None:
    first = tuning(root).get_or_tune("kernel", (1024, "float16"), SPACE, measure)
    assert first.best == BEST and first.seconds == seconds(BEST)
    assert first.timings == sorted(((c, seconds(c)) for c in SPACE), key=lambda pair: pair[1])
    assert (first.failed, first.untried, first.complete, first.measured) == ([], [], True, 6)
    again = tuning(root).get_or_tune("kernel", (1024, "float16"), SPACE, measure)
    assert summary(again) == summary(first) and again.measured == 0
    assert summary(tuning(root).get("kernel", (1024, "float16"), SPACE)) == summary(first)
    assert measure.calls == 6


def other_kernel(x: int) -> int:
    return x + 2


@pytest.mark.parametrize(
    "change",
    [
        {"tuner": "bench 2"},
        {"tuner": ("bench 1", "rep 100")},
        {"device": "NVIDIA H100 PCIe"},  # sm_90 like the H200
        {"device": "NVIDIA H200 MIG 1g.18gb"},
        {"driver": "581.00"},
        {"toolchain": "triton 3.9.1"},
        {"kernel": "other"},
        {"kernel": other_kernel},
        {"arguments": (1024, "float32")},
        {"arguments": [1024, "float16"]},
        {"space": SPACE[:-1]},
        {"space": [*SPACE, {"block": 256, "warps": 8}]},
        {"space": [{**config, "stages": 2} for config in SPACE]},
        {"space": [{**config, "block": float(config["block"])} for config in SPACE]},
        {"name": "matmul"},
    ],
    ids=str,
)
def test_a_different_tuner_device_or_question_in_the_same_directory_sees_nothing(
    root: Path, measure: Measure, change: dict[str, Any]
) -> None:
    """PEERS.md: timings reused by a different tuner in the same directory, or on another GPU of the same arch."""
    question: dict[str, Any] = {"kernel": "kernel", "arguments": (1024, "float16"), "space": SPACE}
    tuning(root).get_or_tune(**question, measure=measure)
    asked = {name: change.get(name, value) for name, value in question.items()}
    mine = {name: value for name, value in change.items() if name in ABOUT}
    extra = {"name": change["name"]} if "name" in change else {}
    other = tuning(root, **mine)
    assert other.get(**asked, **extra) is None
    assert json.loads(other.export_json())["results"] == [] or not set(mine) & {"tuner"}
    before = measure.calls
    found = other.get_or_tune(**asked, measure=measure, **extra)
    assert found.measured == measure.calls - before == len(asked["space"])
    assert tuning(root).get_or_tune(**question, measure=measure).measured == 0


def test_the_device_is_the_current_one_at_each_call(
    root: Path, measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one GPU at most where this runs: what is asked of it is replaced, nothing else."""
    current = ["NVIDIA H100 PCIe"]
    monkeypatch.setattr(devices, "this_device", lambda index=None: (current[0], "580.65"))
    cache = TuningCache(Cache(root), tuner="bench", toolchain="t")
    assert cache.get_or_tune("k", 1, SPACE, measure).measured == 6
    current[0] = "NVIDIA H200"
    assert cache.get("k", 1, SPACE) is None
    assert cache.get("k", 1, SPACE, device="NVIDIA H100 PCIe") is not None


def test_without_a_device_it_says_what_to_do(root: Path) -> None:
    try:
        devices.this_device()
        pytest.skip("needs a machine without a GPU")
    except UsageError as error:
        assert "say device= and driver=" in str(error) and "\n" not in str(error)
    with pytest.raises(UsageError, match="device="):
        TuningCache(Cache(root), tuner="bench", toolchain="t").get("k", 1, SPACE)


@pytest.mark.parametrize("wrong", [{"tuner": ""}, {"tuner": None}, {"toolchain": ""}, {"toolchain": None}])
def test_whose_timings_they_are_has_to_be_said(root: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be empty"):
        tuning(root, **wrong)
    for device in ("", "  ", 3):
        with pytest.raises(UsageError, match="name of the device"):
            tuning(root, device=device).get("k", 1, SPACE, device=device)  # type: ignore[arg-type]


def test_a_real_timing_is_remembered(root: Path) -> None:
    numpy = pytest.importorskip("numpy")
    a = numpy.ones((96, 96), "float32")

    def kernel(x: Any, y: Any, block: int) -> None:
        for i in range(0, 96, block):
            for j in range(0, 96, block):
                x[i : i + block] @ y[:, j : j + block]

    def measure(block: int) -> float:
        began = time.perf_counter()
        kernel(a, a, block)
        return time.perf_counter() - began

    found = tuning(root).get_or_tune(kernel, [a, a], [8, 16, 32, 96], measure)
    assert found.best == min(found.timings, key=lambda pair: pair[1])[0]
    again = tuning(root).get_or_tune(kernel, [a, a], [96, 32, 16, 8], measure)
    assert again.measured == 0 and again.timings == found.timings
    b = a.astype("float64")
    assert tuning(root).get(kernel, [a, b], [8, 16, 32, 96]) is None


# -- failures -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad", [float("nan"), float("inf"), -1.0, RuntimeError("out of resource: shared memory\nmore")]
)
def test_what_cannot_be_measured_is_recorded_and_not_tried_again(root: Path, bad: Any) -> None:
    tried = []

    def measure(config: dict[str, int]) -> float:
        tried.append(config)
        if config["block"] == 64:
            if isinstance(bad, Exception):
                raise bad
            return float(bad)
        return seconds(config)

    found = tuning(root).get_or_tune("k", 1, SPACE, measure)
    assert found.best == {"block": 32, "warps": 8} and found.complete
    assert [config["block"] for config, _ in found.failed] == [64, 64]
    expected = "RuntimeError: out of resource: shared memory" if isinstance(bad, Exception) else str(bad)
    assert all(expected in reason and "\n" not in reason for _, reason in found.failed)
    assert len(tried) == 6
    tuning(root).get_or_tune("k", 1, SPACE, measure)
    assert len(tried) == 6
    healed = tuning(root).get_or_tune("k", 1, SPACE, seconds, retry_failed=True)
    assert healed.best == BEST and healed.failed == [] and healed.measured == 2


def test_when_nothing_can_be_measured_the_cause_is_raised_and_nothing_stands_for_success(root: Path) -> None:
    def fail(config: object) -> float:
        raise ValueError("ptxas fatal: unknown sm")

    for _ in range(2):
        with pytest.raises(HotstartError, match=r"none of the 6 .*ValueError: ptxas fatal") as caught:
            tuning(root).get_or_tune("k", 1, SPACE, fail)
        assert isinstance(caught.value.__cause__, ValueError)
    known = tuning(root).get("k", 1, SPACE)
    assert known is not None and known.best is None and not known.complete and len(known.failed) == 6
    assert tuning(root).get_or_tune("k", 1, SPACE, seconds).best == BEST


@pytest.mark.parametrize("wrong", [None, "fast", True, [1.0, 2.0]])
def test_a_measure_that_returns_no_number_is_told_so(root: Path, wrong: Any) -> None:
    answers = iter([1.0, wrong])
    with pytest.raises(UsageError, match="one number"):
        tuning(root).get_or_tune("k", 1, SPACE, lambda config: next(answers))
    known = tuning(root).get("k", 1, SPACE)
    assert known is not None and len(known.timings) == 1, "what was measured before it is gone"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_interrupted_what_was_measured_stays_and_the_next_goes_on(
    root: Path, measure: Measure, interruption: type[BaseException]
) -> None:
    def interrupted(config: dict[str, int]) -> float:
        if measure.calls == 4:
            raise interruption
        return measure(config)

    with pytest.raises(interruption):
        tuning(root).get_or_tune("k", 1, SPACE, interrupted)
    partial = tuning(root).get("k", 1, SPACE)
    assert partial is not None and not partial.complete
    assert (len(partial.timings), len(partial.untried)) == (4, 2)
    finished = tuning(root).get_or_tune("k", 1, SPACE, measure)
    assert finished.complete and finished.measured == 2 and measure.calls == 6


def test_a_killed_process_loses_only_what_it_was_measuring(root: Path, tmp_path: Path, fork: Fork) -> None:
    slow = Measure(tmp_path / "measured", takes=0.25)  # longer than the time between two flushes
    child = fork(lambda: tuning(root).get_or_tune("k", 1, SPACE, slow).measured)
    while slow.calls < 4:
        time.sleep(0.01)
    child.send(signal.SIGKILL)
    child.wait()
    partial = tuning(root).get("k", 1, SPACE)
    # Three were measured; on a slow disk not each of them is stored at once.
    assert partial is not None and 1 <= len(partial.timings) <= 3
    finished = tuning(root, cache={"wait": 600}).get_or_tune("k", 1, SPACE, seconds)
    assert finished.best == BEST and finished.measured == 6 - len(partial.timings)


# -- many at once ---------------------------------------------------------------------------


def test_processes_that_ask_at_once_measure_each_configuration_once(root: Path, tmp_path: Path, fork: Fork) -> None:
    measure = Measure(tmp_path / "measured", takes=0.03)

    def ask(memory: int) -> Any:
        return tuning(root, cache={"memory": memory}).get_or_tune("k", 1, SPACE, measure).best

    children = [fork(ask, memory) for memory in (0, 1 << 20, 0, 1 << 20)]
    assert [child.result() for child in children] == [BEST] * 4
    assert measure.calls == 6


def test_threads_that_ask_at_once_measure_each_configuration_once(measure: Measure) -> None:
    measure.takes = 0.01
    cache = tuning(None)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.get_or_tune("k", 1, SPACE, measure).best)) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [BEST] * 6 and measure.calls == 6


def test_no_update_is_lost_between_processes(root: Path, fork: Fork, scale: int) -> None:
    """Each writes its own timings of all configurations, one at a time, in its own order."""
    writers, rounds = 4, 8 * scale
    space = list(range(8))

    def write(writer: int) -> None:
        cache = tuning(root, cache={"memory": "1MiB" if writer % 2 else 0})
        for n in range(rounds):
            config = space[(n * 3 + writer) % len(space)]
            cache.record("k", 1, space, [(config, 1 + config + writer / 10 + n / 1000)])

    for child in [fork(write, writer) for writer in range(writers)]:
        child.result()
    (result,) = json.loads(tuning(root).export_json())["results"]
    expected: dict[int, set[float]] = {config: set() for config in space}
    for writer in range(writers):
        for n in range(rounds):
            config = space[(n * 3 + writer) % len(space)]
            expected[config].add(1 + config + writer / 10 + n / 1000)
    assert {row["config"]: set(row["seconds"]) for row in result["configs"]} == expected


def test_a_stale_memory_tier_does_not_undo_what_others_wrote(root: Path) -> None:
    one, two = tuning(root), tuning(root)
    one.record("k", 1, SPACE, [(SPACE[0], 1.0)])
    assert two.get("k", 1, SPACE) is not None  # now in the memory of two
    one.record("k", 1, SPACE, [(SPACE[1], 0.5)])
    two.record("k", 1, SPACE, [(SPACE[2], 2.0)])
    known = tuning(root).get("k", 1, SPACE)
    assert known is not None and [config for config, _ in known.timings] == [SPACE[1], SPACE[0], SPACE[2]]


def test_what_others_added_to_incomplete_results_is_seen(root: Path) -> None:
    one, two = tuning(root), tuning(root)
    one.record("k", 1, SPACE, [(SPACE[0], 1.0)])
    assert two.get("k", 1, SPACE) is not None
    one.record("k", 1, SPACE, [(SPACE[1], 0.5)])
    known = two.get("k", 1, SPACE)
    assert known is not None and known.best == SPACE[1]


def test_when_nothing_can_be_measured_those_who_waited_are_told_without_trying(root: Path) -> None:
    cache = tuning(root)
    tried, caught = [], []
    inside = threading.Event()

    def fail(config: object) -> float:
        tried.append(config)
        inside.set()
        time.sleep(0.05)
        raise RuntimeError("no kernel image")

    def ask(first: bool) -> None:
        if not first:
            inside.wait(30)
        try:
            cache.get_or_tune("k", 1, SPACE, fail)
        except HotstartError as error:
            caught.append(error)

    threads = [threading.Thread(target=ask, args=(n == 0,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(caught) == 3 and len(tried) == 6


def test_asking_inside_a_measurement_does_not_hang(root: Path) -> None:
    cache = tuning(root)

    def inner(config: dict[str, int]) -> float:
        return seconds(config)

    def outer(config: dict[str, int]) -> float:
        same = cache.get_or_tune("k", 1, SPACE, inner)
        other = cache.get_or_tune("k2", 1, SPACE, inner)
        return float(same.seconds or 0) + float(other.seconds or 0) + seconds(config)

    assert cache.get_or_tune("k", 1, SPACE, outer).complete


def test_two_questions_asked_in_opposite_orders_do_not_hang(root: Path) -> None:
    cache = tuning(root, cache={"wait": 60})
    both = threading.Barrier(2)
    results = []

    def ask(mine: str, other: str) -> None:
        def measure(config: int) -> float:
            if config == 0:
                both.wait(30)
            return 1.0 + len(cache.get_or_tune(other, 1, [0, 1], lambda config: 1.0).timings)

        results.append(cache.get_or_tune(mine, 1, [0, 1], measure).complete)

    threads = [threading.Thread(target=ask, args=pair, daemon=True) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert results == [True, True]


# -- where nothing can be stored --------------------------------------------------------------


def test_a_store_that_cannot_be_written_still_tunes_once_per_process(root: Path, measure: Measure) -> None:
    Cache(root).close()
    cache = tuning(root, cache={"read_only": True, "memory": 0})
    for expected in (6, 0):
        assert cache.get_or_tune("k", 1, SPACE, measure).measured == expected
    assert tuning(root).get("k", 1, SPACE) is None
    assert len(json.loads(cache.export_json())["results"]) == 1


def test_a_cache_in_memory_alone_serves_and_exports(measure: Measure, tmp_path: Path) -> None:
    cache = tuning(None)
    cache.get_or_tune("k", 1, SPACE, measure)
    assert cache.get_or_tune("k", 1, SPACE, measure).measured == 0
    cache.export_json(tmp_path / "exported.json")
    other = tuning(None)
    assert other.import_json(tmp_path / "exported.json") == 1
    assert summary(other.get("k", 1, SPACE)) == summary(cache.get("k", 1, SPACE))
    assert cache.forget("k", 1, SPACE) and cache.get("k", 1, SPACE) is None and not cache.forget("k", 1, SPACE)


def test_what_a_full_disk_refused_is_merged_when_there_is_room_again(root: Path) -> None:
    cache = tuning(root, cache={"memory": 0})
    cache.record("k", 1, SPACE, [(SPACE[0], 1.0)])
    with FailingIO(errno.ENOSPC, at=1, onwards=True, only=("write", "writev", "mkdir", "rename")):
        known = cache.record("k", 1, SPACE, [(SPACE[1], 2.0)])
        assert len(known.timings) == 2
    stored = tuning(root).get("k", 1, SPACE)
    assert stored is not None and len(stored.timings) == 1
    cache.record("k", 1, SPACE, [(SPACE[2], 3.0)])
    stored = tuning(root).get("k", 1, SPACE)
    assert stored is not None and len(stored.timings) == 3


def test_whatever_fails_the_best_is_found_and_nothing_stored_is_lost(tmp_path: Path) -> None:
    def work(root: Path) -> Tuning:
        return tuning(root, cache={"memory": 0}).get_or_tune("k", 1, SPACE, seconds)

    def prepared(name: str) -> Path:
        tuning(tmp_path / name).record("k", 1, SPACE, [(SPACE[0], 7.0)])
        return tmp_path / name

    ready = prepared("counted")
    with FailingIO() as io:
        work(ready)
    for at in range(1, io.calls + 1):
        root = prepared(f"store{at}")
        with FailingIO(errno.EIO, at=at):
            found = work(root)
        assert found.best == BEST, at
        (result,) = json.loads(tuning(root).export_json())["results"]
        assert 7.0 in result["configs"][Space(SPACE).number(SPACE[0])]["seconds"], f"call {at}: {io.log[at - 1]}"


def test_a_damaged_entry_is_measured_again(root: Path, measure: Measure) -> None:
    tuning(root).get_or_tune("k", 1, SPACE, measure)
    (path,) = [path for path in (root / "entries").rglob("*") if path.is_file()]
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    assert tuning(root).get_or_tune("k", 1, SPACE, measure).measured == 6


@pytest.mark.parametrize("content", [b"", b"junk", encode(1), encode(({99: (1.0,)}, {})), encode(({"0": (1.0,)}, {}))])
def test_an_entry_that_makes_no_sense_is_no_result(root: Path, measure: Measure, content: bytes) -> None:
    key = tuning(root)._question("k", 1, SPACE, "", None).key
    with Cache(root) as cache:
        cache.put(key, {"timings": content})
        cache.put(Key("tuning", n=2), {})
    assert tuning(root).get("k", 1, SPACE) is None
    assert tuning(root).get_or_tune("k", 1, SPACE, measure).best == BEST
    assert len(json.loads(tuning(root).export_json())["results"]) == 0
