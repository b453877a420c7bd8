"""``hotstart why`` after real runs of real frameworks: the cause is found through ``hotstart run``, end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Place:
    """A project and a home; every run is a fresh process under ``hotstart run``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOTSTART_", "OMP_"))}
        self.environ = {**kept, "HOTSTART_HOME": str(root / "home"), "OMP_NUM_THREADS": "2", "JAX_PLATFORMS": "cpu"}

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def hotstart(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "hotstart", *arguments]
        done = subprocess.run(
            command, cwd=self.root, env=self.environ, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def causes(self, framework: str, *arguments: str) -> tuple[int, list[str]]:
        """Run the program; how many units were compiled, and what is said to be the cause."""
        self.hotstart("run", "--quiet", sys.executable, "program.py", *arguments)
        report: dict[str, Any] = json.loads(self.hotstart("why", "--json"))
        for answer in report["frameworks"]:
            if answer["framework"] == framework:
                causes = [cause["text"] for cause in answer["causes"]]
                return answer["new"], causes or [answer["status"]]
        return 0, []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


JAX = """
import sys
import jax
import jax.numpy as jnp
from model import scale
print(jax.jit(lambda x: jnp.sin(x) @ x.T * scale + len(sys.argv))(jnp.ones((8, 8))).shape)
"""


def test_jax(place: Place) -> None:
    place.write("program.py", JAX)
    place.write("model.py", "scale = 2\n")
    new, causes = place.causes("jax")
    assert (new > 0, causes) == (True, ["never seen"])
    assert place.causes("jax") == (0, ["hit"])
    place.write("model.py", "scale = 3\n")
    assert place.causes("jax") == (1, ["model.py was edited"])
    assert place.causes("jax", "--bf16") == (1, ["--bf16 was added"])
    place.environ["XLA_FLAGS"] = "--xla_cpu_enable_fast_math=true"
    new, causes = place.causes("jax")
    assert (new > 0, causes) == (True, ["XLA_FLAGS unset → --xla_cpu_enable_fast_math=true"])


TRITON = """
import sys
import triton
from kernels import scale
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
source = ASTSource(fn=scale, signature={"x": "*fp32", "block": "constexpr"}, constexprs={"block": 64})
triton.compile(source, target=GPUTarget("cuda", int(sys.argv[2]), 32))
"""

KERNELS = """
import triton
import triton.language as tl

@triton.jit
def scale(x, block: tl.constexpr):
    i = tl.arange(0, block)
    tl.store(x + i, tl.load(x + i) * 2)
"""


def test_triton(place: Place) -> None:
    """Compiled for GPUs that are not here."""
    pytest.importorskip("triton", reason="needs Triton (pip install triton), no GPU")
    place.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    place.write("program.py", TRITON)
    place.write("kernels.py", KERNELS)
    new, causes = place.causes("triton", "--arch", "90")
    assert (new > 0, causes) == (True, ["never seen"])
    assert place.causes("triton", "--arch", "90") == (0, ["hit"])
    assert place.causes("triton", "--arch", "80") == (1, ["--arch 90 → 80"])
    place.write("kernels.py", KERNELS.replace("* 2", "* 3"))
    assert place.causes("triton", "--arch", "80") == (1, ["kernels.py was edited"])
    # The same through the cache manager, whose entries are compared by their keys.
    place.environ["TRITON_CACHE_MANAGER"] = "hotstart.compilers.triton:CacheManager"
    place.causes("triton", "--arch", "80")
    place.write("kernels.py", KERNELS.replace("* 2", "* 4"))
    place.causes("triton", "--arch", "80")
    (answer,) = json.loads(place.hotstart("why", "--json"))["entries"]
    assert (answer["kind"], answer["name"]) == ("triton", "scale")
    (said,) = answer["changed"].values()
    assert said.startswith("Triton's own key changed: kernel source")


TORCH = """
import torch
from model import scale
print(float(torch.compile(lambda x: torch.sin(x) * scale)(torch.ones(64, 64)).sum()))
"""


def test_torch_with_another_number_of_threads(place: Place) -> None:
    place.write("program.py", TORCH)
    place.write("model.py", "scale = 2\n")
    new, causes = place.causes("torch")
    assert (new > 0, causes) == (True, ["never seen"])
    place.environ["OMP_NUM_THREADS"] = "1"
    new, causes = place.causes("torch")
    assert (new > 0, causes) == (True, ["OMP_NUM_THREADS 2 → 1"])


def test_what_was_cleared_is_said_to_be_gone(place: Place) -> None:
    place.write("program.py", JAX)
    place.write("model.py", "scale = 2\n")
    place.causes("jax")
    place.hotstart("clear", "--yes")
    new, _ = place.causes("jax")
    assert new > 0
    assert f"{new} units had been compiled before and are gone: evicted or cleared" in place.hotstart("why")
