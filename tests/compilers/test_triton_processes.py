"""Triton through one store from many processes at once: each kernel compiled once, whoever dies on the way.

Compiles are counted where they cannot be missed: ``ptxas`` is wrapped by a script that
notes which process assembles which kernel, in a file opened for appending, before it starts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hotstart
from hotstart.compilers import shelf
from hotstart.compilers import triton as ours

triton = pytest.importorskip("triton", reason="needs Triton (pip install triton), no GPU")

from triton import knobs  # noqa: E402
from triton.runtime.cache import triton_key  # noqa: E402

PROCESSES, KERNELS = 8, 20

_HEAD = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

def compile(kernel):
    source = ASTSource(fn=kernel, signature={"x": "*fp32", "B": "constexpr"}, constexprs={"B": 64})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32))
"""

_KERNEL = """
@triton.jit
def kernel_{n}(x, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(x + i, tl.load(x + i) * {n} + {n})
"""

# The entry point of the PTX names the kernel.
_PTXAS = """#!/bin/sh
case "$*" in *" -o "*)
  for argument; do case "$argument" in *.ptx) ptx="$argument";; esac; done
  echo "$PPID $(sed -n 's/.*[.]entry \\(kernel_[0-9]*\\).*/\\1/p' "$ptx")" >> "{log}"
esac
exec "{real}" "$@"
"""


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file in which the wrapped ``ptxas`` notes who assembles what. Wrapped once: Triton remembers where it is."""
    directory = tmp_path_factory.mktemp("ptxas")
    with knobs.nvidia.scope():
        # Which of the two Triton takes for sm_90 changes between its releases.
        for name in ("ptxas", "ptxas_blackwell"):
            real = getattr(knobs.nvidia, name, knobs.nvidia.ptxas).path
            wrapper = directory / name
            wrapper.write_text(_PTXAS.format(log=directory / "log", real=real))
            wrapper.chmod(0o755)
            os.environ[f"TRITON_{name.upper()}_PATH"] = str(wrapper)
        yield directory / "log"


@pytest.fixture
def compiles(assembled: Path) -> Callable[[], list[tuple[int, str]]]:
    """All compiles since the test began: process and kernel."""
    assembled.unlink(missing_ok=True)

    def read() -> list[tuple[int, str]]:
        lines = assembled.read_text().splitlines() if assembled.exists() else []
        return [(int(line.split()[0]), line.split()[1]) for line in lines]

    return read


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of twenty kernels; Triton's knobs are put back afterwards."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setattr(ours, "_settled", {})
    monkeypatch.setattr(shelf, "_known", {})
    path = tmp_path / "kernels.py"
    path.write_text(_HEAD + "".join(_KERNEL.format(n=n) for n in range(1, KERNELS + 1)))
    spec = importlib.util.spec_from_file_location("kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    triton_key()  # Triton hashes itself once; forked workers inherit the answer
    with knobs.cache.scope(), knobs.compilation.scope():
        yield module


def work(store: Path, module: Any) -> list[str]:
    """What one worker does: compile all twenty. The digests of the cubins it got."""
    knobs.cache.manager_class = ours.CacheManager.over(hotstart.Cache(store, memory=0))
    made = [module.compile(getattr(module, f"kernel_{n}")) for n in range(1, KERNELS + 1)]
    return [f"{kernel.name} {hash(kernel.asm['cubin'])}" for kernel in made]


def test_eight_processes_compile_each_of_twenty_kernels_once(
    tmp_path: Path, kernels: Any, compiles: Callable[[], list[tuple[int, str]]], fork: Callable[..., Any]
) -> None:
    workers = [fork(work, tmp_path / "store", kernels) for _ in range(PROCESSES)]
    results = [worker.result() for worker in workers]
    assert all(result == results[0] for result in results)
    assert Counter(kernel for _, kernel in compiles()) == {f"kernel_{n}": 1 for n in range(1, KERNELS + 1)}
    assert len(hotstart.Cache(tmp_path / "store")) == KERNELS


def test_killing_processes_as_they_compile_costs_at_most_one_compile_each(
    tmp_path: Path, kernels: Any, compiles: Callable[[], list[tuple[int, str]]], fork: Callable[..., Any]
) -> None:
    workers = {worker.pid: worker for worker in (fork(work, tmp_path / "store", kernels) for _ in range(PROCESSES))}
    killed: set[int] = set()
    for moment in (1, 7, 13):
        deadline = time.monotonic() + 60
        while len(compiles()) < moment + len(killed):
            assert time.monotonic() < deadline, "the workers do not get on"
            time.sleep(0.001)
        pid, _ = compiles()[-1]  # it is in ptxas, or about to store what that made
        if pid not in killed:
            workers[pid].kill()
            killed.add(pid)
    results = [worker.result() for pid, worker in workers.items() if pid not in killed]
    assert len(results) == PROCESSES - len(killed)
    assert all(result == results[0] for result in results)
    counts = Counter(kernel for _, kernel in compiles())
    assert set(counts) == {f"kernel_{n}" for n in range(1, KERNELS + 1)}
    assert KERNELS <= counts.total() <= KERNELS + len(killed)
    assert hotstart.Cache(tmp_path / "store").verify()["damaged"] == []
    before = len(compiles())
    assert fork(work, tmp_path / "store", kernels).result() == results[0]
    assert len(compiles()) == before, "everything was stored"


def test_threads_that_want_the_same_kernel_compile_it_once(
    tmp_path: Path, kernels: Any, compiles: Callable[[], list[tuple[int, str]]]
) -> None:
    knobs.cache.manager_class = ours.CacheManager.over(hotstart.Cache(tmp_path / "store", memory=0))
    made: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: made.append(kernels.compile(kernels.kernel_1).asm["cubin"])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 4
    assert len(set(made)) == 1
    assert [kernel for _, kernel in compiles()] == ["kernel_1"]


def test_a_worker_forked_from_a_process_that_has_compiled_hits_and_compiles(
    tmp_path: Path, kernels: Any, compiles: Callable[[], list[tuple[int, str]]], fork: Callable[..., Any]
) -> None:
    knobs.cache.manager_class = ours.CacheManager.over(hotstart.Cache(tmp_path / "store", memory=0))
    kernels.compile(kernels.kernel_1)

    def worker() -> dict[str, float]:
        kernels.compile(kernels.kernel_1)
        kernels.compile(kernels.kernel_2)
        return ours.stats()

    counted = fork(worker).result()
    assert (counted["hit.shelf"], counted["stored"]) == (1, 1)
    kernels.compile(kernels.kernel_2)
    assert [kernel for _, kernel in compiles()] == ["kernel_1", "kernel_2"]


_SPAWNED = """
import sys
sys.path.insert(0, {directory!r})
import json, kernels
from hotstart.compilers.triton import stats
sizes = [len(kernels.compile(getattr(kernels, f"kernel_{{n}}")).asm["cubin"]) for n in range(1, 4)]
opened = sorted({{"hotstart.cache", "sqlite3", "blake3"}} & set(sys.modules))
print(json.dumps({{"sizes": sizes, "opened": opened, "stats": stats()}}))
"""


def test_a_spawned_process_is_configured_by_the_environment_and_hits_without_opening_the_store(
    tmp_path: Path, kernels: Any, compiles: Callable[[], list[tuple[int, str]]]
) -> None:
    environment = {
        **os.environ,
        "TRITON_CACHE_MANAGER": "hotstart.compilers.triton:CacheManager",
        "HOTSTART_HOME": str(tmp_path / "home"),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
    }

    def spawn() -> Any:
        program = _SPAWNED.format(directory=str(tmp_path))
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    first, second = spawn(), spawn()
    assert len(compiles()) == 3
    assert second["sizes"] == first["sizes"]
    assert second["opened"] == []
    assert second["stats"]["hit.shelf"] == 3
