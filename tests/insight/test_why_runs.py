"""``why`` for frameworks seen only through their directory: each staged cause is named, and nothing beside it.

The contexts are real ones: gathered from real directories, environments and files that
are changed between two runs. Only what this machine has no two of (GPUs, drivers,
processors) is written into the record.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hotstart.insight.why import NEVER_SEEN, NOTHING_CHANGED, explain_run, sentences
from hotstart.launch import records
from hotstart.launch.context import gather

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Record = dict[str, Any]


class Bench:
    """A project with a Python of its own, and runs of it that are recorded."""

    def __init__(self, root: Path) -> None:
        self.home = str(root / "home")
        self.project = root / "project"
        self.project.mkdir()
        (self.project / "train.py").write_text("import model\n")
        (self.project / "model.py").write_text("layers = 8\n")
        (self.project / "csrc").mkdir()
        (self.project / "csrc" / "kernel.cuh").write_text("#define TILE 16\n")
        self.environ = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "2"}
        self.arguments = ["--layers", "8"]
        self.python = root / "env"
        self.install(self.python, "3.11.9", torch="2.12.1", triton="3.6.0", jax="0.10.2", numpy="2.1.0")
        self.patch: Record = {}
        self._number = 0

    def install(self, place: Path, version: str, **packages: str) -> None:
        """A virtual environment, as far as anything reads of it."""
        (place / "bin").mkdir(parents=True, exist_ok=True)
        (place / "bin" / "python").write_text("")
        (place / "bin" / "python").chmod(0o755)
        (place / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {version}\n")
        site = place / "lib" / f"python{'.'.join(version.split('.')[:2])}" / "site-packages"
        shutil.rmtree(place / "lib", ignore_errors=True)
        for name, number in packages.items():
            (site / f"{name}-{number}.dist-info").mkdir(parents=True)

    def run(
        self, framework: str = "torch", *units: str, event: str = "new", name: str = "train", **more: Any
    ) -> Record:
        """One run that compiled ``units`` (one of its own unless given)."""
        self._number += 1
        named = units or (f"unit{self._number}",)
        command = [str(self.python / "bin" / "python"), "train.py", *self.arguments]
        context = gather(command, self.environ, [framework], directory=str(self.project))
        context.update(self.patch)
        numbers = {
            "hits": 0,
            "new": 0,
            "restored": 0,
            "bytes": 1,
            "seconds_saved": 0.0,
            "left_alone": [],
            "rebuilt": [],
        }
        numbers["new" if event == "new" else "hits"] = len(named)
        record: Record = {
            "id": records.new_id(), "name": name, "command": command, "started": 0.0, "seconds": 1.0, "status": 0,
            "frameworks": {framework: {**numbers, **more}},
            "units": [
                {"framework": framework, "unit": unit, "name": unit, "event": event, "cost": 1.0} for unit in named
            ],
            "context": context,
        }  # fmt: skip
        assert records.write(self.home, record)
        return record

    def said(self, framework: str = "torch", **more: Any) -> list[str]:
        """What is said of one more run."""
        (answer,) = explain_run(self.home, self.run(framework, **more))["frameworks"]
        return sentences(answer)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def threads(bench: Bench) -> None:
    bench.environ["OMP_NUM_THREADS"] = "1"


def version(bench: Bench) -> None:
    bench.install(bench.python, "3.11.9", torch="2.13.0", triton="3.6.0", jax="0.10.2", numpy="2.1.0")


def companion(bench: Bench) -> None:
    bench.install(bench.python, "3.11.9", torch="2.12.1", triton="3.9.0", jax="0.10.2", numpy="2.1.0")


def python(bench: Bench) -> None:
    bench.install(bench.python, "3.12.1", torch="2.12.1", triton="3.6.0", jax="0.10.2", numpy="2.1.0")


def moved(bench: Bench) -> None:
    shutil.move(bench.python, bench.python.with_name("elsewhere"))
    bench.python = bench.python.with_name("elsewhere")


def edit(bench: Bench) -> None:
    (bench.project / "model.py").write_text("layers = 9\n")


def rename(bench: Bench) -> None:
    (bench.project / "model.py").rename(bench.project / "network.py")
    (bench.project / "train.py").write_text("import network\n")


def helper(bench: Bench) -> None:
    (bench.project / "helper.py").write_text("def f(): pass\n")
    (bench.project / "model.py").write_text("import helper\n")


def header(bench: Bench) -> None:
    (bench.project / "csrc" / "kernel.cuh").write_text("#define TILE 32\n")


def option(bench: Bench) -> None:
    bench.arguments = ["--layers", "12"]


def flag(bench: Bench) -> None:
    bench.arguments.append("--bf16")


def autotune(bench: Bench) -> None:
    bench.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"


def xla(bench: Bench) -> None:
    bench.environ["XLA_FLAGS"] = "--xla_cpu_enable_fast_math=true"


def visible(bench: Bench) -> None:
    bench.environ["CUDA_VISIBLE_DEVICES"] = "1"


def device(bench: Bench) -> None:
    bench.patch["gpus"] = [{"name": "NVIDIA H200", "arch": "sm_90"}]


def driver(bench: Bench) -> None:
    bench.patch["driver"] = "580.65.06"


def processor(bench: Bench) -> None:
    bench.patch["cpu"] = {"model": "x", "features": "avx2 avx512f fma"}


def compiler(bench: Bench) -> None:
    bench.patch["compiler"] = "/usr/bin/g++-13 1 2"


def machine(bench: Bench) -> None:
    bench.patch["machine"] = "riscv64"


CAUSES: list[tuple[Callable[[Bench], None], str, list[str]]] = [
    (threads, "torch", ["OMP_NUM_THREADS 2 → 1"]),
    (version, "torch", ["torch 2.12.1 → 2.13.0"]),
    (companion, "torch", ["triton 3.6.0 → 3.9.0"]),
    (companion, "triton", ["triton 3.6.0 → 3.9.0"]),
    (python, "torch", ["Python 3.11.9 → 3.12.1"]),
    (edit, "torch", ["model.py was edited"]),
    (edit, "triton", ["model.py was edited"]),
    (rename, "jax", ["model.py was renamed to network.py", "train.py was edited"]),
    (helper, "torch", ["helper.py is new", "model.py was edited"]),
    (header, "torch-extensions", ["csrc/kernel.cuh was edited"]),
    (option, "torch", ["--layers 8 → 12"]),
    (flag, "jax", ["--bf16 was added"]),
    (autotune, "torch", ["TORCHINDUCTOR_MAX_AUTOTUNE unset → 1"]),
    (xla, "jax", ["XLA_FLAGS unset → --xla_cpu_enable_fast_math=true"]),
    (visible, "torch", ["CUDA_VISIBLE_DEVICES unset → 1"]),
    (device, "torch", ["GPU architecture sm_80 → sm_90", "GPU NVIDIA A100 → NVIDIA H200"]),
    (driver, "jax", ["NVIDIA driver 550.1 → 580.65.06"]),
    (processor, "torch", ["CPU features: avx512f gained"]),
    (compiler, "torch", ["C++ compiler /usr/bin/g++-12 → /usr/bin/g++-13"]),
    (machine, "torch", ["machine x86_64 → riscv64"]),
]

#: Of what there are no two here, the first run has this.
BEFORE = {
    "gpus": [{"name": "NVIDIA A100", "arch": "sm_80"}],
    "driver": "550.1",
    "cpu": {"model": "x", "features": "avx2 fma"},
    "compiler": "/usr/bin/g++-12 1 2",
    "machine": "x86_64",
}


@pytest.mark.parametrize(("cause", "framework", "said"), CAUSES, ids=[f"{c.__name__}-{f}" for c, f, _ in CAUSES])
def test_the_cause_is_named_and_nothing_else(
    bench: Bench, cause: Callable[[Bench], None], framework: str, said: list[str]
) -> None:
    bench.patch = dict(BEFORE)
    bench.run(framework)
    cause(bench)
    assert bench.said(framework) == said


def test_another_install_path_is_named(bench: Bench) -> None:
    bench.run("torch")
    moved(bench)
    first, second = bench.said("torch", rebuilt=49, new=49, hits=3)
    assert first == "a hit, but 49 units had to be built again"
    assert second.startswith("torch moved: ")


@pytest.mark.parametrize("cause", [threads, autotune, xla, processor])
def test_what_is_not_in_a_frameworks_key_is_not_blamed(bench: Bench, cause: Callable[[Bench], None]) -> None:
    bench.patch = dict(BEFORE)
    bench.run("cupy")
    cause(bench)
    assert bench.said("cupy") == [NOTHING_CHANGED]


def test_fewer_processors_are_named(bench: Bench) -> None:
    del bench.environ["OMP_NUM_THREADS"]
    bench.patch["threads"] = 4
    bench.run()
    bench.patch["threads"] = 2
    assert bench.said() == ["CPU threads 4 → 2"]


def test_a_change_that_may_not_matter_is_only_a_guess(bench: Bench) -> None:
    bench.run()
    bench.install(bench.python, "3.11.9", torch="2.12.1", triton="3.6.0", jax="0.10.2", numpy="2.2.0")
    assert bench.said() == ["perhaps: numpy 2.1.0 → 2.2.0"]
    threads(bench)
    assert bench.said() == ["OMP_NUM_THREADS 2 → 1"]


def test_a_file_that_is_not_imported_is_only_a_guess(bench: Bench) -> None:
    bench.run()
    (bench.project / "notes.py").write_text("")
    (bench.project / "settings.yaml").write_text("layers: 9")
    assert bench.said() == ["perhaps: notes.py is new", "perhaps: settings.yaml is new"]
    edit(bench)
    assert bench.said() == ["model.py was edited"]


def test_several_causes_are_all_named(bench: Bench) -> None:
    bench.run()
    threads(bench)
    edit(bench)
    assert bench.said() == ["OMP_NUM_THREADS 2 → 1", "model.py was edited"]


def test_the_nearest_run_counts_not_the_last(bench: Bench) -> None:
    bench.run()
    edit(bench)
    option(bench)
    bench.run()
    (bench.project / "model.py").write_text("layers = 8\n")
    bench.arguments = ["--layers", "8"]
    threads(bench)
    assert bench.said() == ["OMP_NUM_THREADS 2 → 1"]


def test_a_first_run_was_never_seen(bench: Bench) -> None:
    (said,) = bench.said()
    assert said.startswith(NEVER_SEEN)


def test_a_framework_that_is_new_in_a_program_was_never_seen(bench: Bench) -> None:
    bench.run("torch")
    (said,) = bench.said("jax")
    assert said.startswith(NEVER_SEEN)


def test_runs_of_other_workloads_do_not_count_unless_it_is_the_same_program(bench: Bench) -> None:
    bench.run(name="other")
    threads(bench)
    assert bench.said() == ["OMP_NUM_THREADS 2 → 1"]
    bench.patch["program"] = "serve.py"
    (said,) = bench.said(name="serve")
    assert said.startswith(NEVER_SEEN)


def test_what_had_been_compiled_and_is_gone_was_evicted(bench: Bench) -> None:
    bench.run("triton", "a", "b", "c")
    record = bench.run("triton", "a", "b")
    (answer,) = explain_run(bench.home, record)["frameworks"]
    assert {unit["unit"] for unit in answer["lost"]} == {"a", "b"}
    assert sentences(answer) == ["2 units had been compiled before and are gone: evicted or cleared"]


def test_units_of_two_kinds_with_one_name_are_two(bench: Bench) -> None:
    record = bench.run("torch", "a")
    other = bench.run("torch", "a")
    other["units"][0]["unit"] = "another kind"
    (answer,) = explain_run(bench.home, other)["frameworks"]
    assert record["units"][0]["name"] == other["units"][0]["name"]
    assert answer["lost"] == []


def test_hits_that_nobody_can_count_are_not_zero(bench: Bench) -> None:
    (answer,) = explain_run(bench.home, bench.run("torch", "a", hits=None))["frameworks"]
    assert answer["hits"] is None


def test_evicted_and_changed_are_told_apart(bench: Bench) -> None:
    bench.run("triton", "a", "b")
    edit(bench)
    (answer,) = explain_run(bench.home, bench.run("triton", "a", "z"))["frameworks"]
    assert sentences(answer) == [
        "1 unit had been compiled before and is gone: evicted or cleared",
        "model.py was edited",
    ]


def test_a_damaged_unit_is_named(bench: Bench) -> None:
    bench.run("triton", "a")
    (answer,) = explain_run(bench.home, bench.run("triton", "a", event="damaged", new=1, hits=0))["frameworks"]
    assert "a was damaged and could not be used" in sentences(answer)


def test_where_nothing_changed_that_is_said(bench: Bench) -> None:
    bench.run()
    assert bench.said() == [NOTHING_CHANGED]


def test_a_hit_that_still_built_something_says_what(bench: Bench) -> None:
    bench.run("torch", "g")
    (answer,) = explain_run(bench.home, bench.run("torch", "g", event="hit", rebuilt=["x.so", "y.so"]))["frameworks"]
    assert answer["status"] == "rebuilt"
    assert sentences(answer) == ["a hit, but 2 units had to be built again: x.so, y.so"]


def test_a_number_of_rebuilt_files_will_do(bench: Bench) -> None:
    (answer,) = explain_run(bench.home, bench.run("torch", event="hit", rebuilt=49))["frameworks"]
    assert "a hit, but 49 units had to be built again" in sentences(answer)


def test_a_whole_hit_has_nothing_to_explain(bench: Bench) -> None:
    bench.run("torch", "g")
    (answer,) = explain_run(bench.home, bench.run("torch", "g", event="hit"))["frameworks"]
    assert (answer["status"], sentences(answer)) == ("hit", [])


def test_contexts_of_another_version_are_not_compared(bench: Bench) -> None:
    bench.patch["version"] = 0
    bench.run()
    bench.patch.clear()
    threads(bench)
    (said,) = bench.said()
    assert said.startswith(NEVER_SEEN)


def test_records_without_context_are_survived(bench: Bench) -> None:
    records.write(bench.home, {"name": "train", "frameworks": {"torch": {"new": 1}, "odd": 3}})
    record = {"name": "train", "frameworks": {"torch": {"new": 2}}, "units": []}
    records.write(bench.home, record)
    (answer,) = explain_run(bench.home, record)["frameworks"]
    assert sentences(answer) == [NOTHING_CHANGED]
