"""Two fresh machines and one remote: the second runs torch, Triton and NVRTC hot at once, and compiles nothing.

Real frameworks, no GPU: all of them compile for sm_90 or the CPU on any machine. A
machine is a HOME, a store, a temporary directory and redirected directories of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from hotstart.testing.servers import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Team
else:
    from machines import Team

FRAMEWORKS = Path(__file__).parents[1] / "frameworks"
EXAMPLES = Path(__file__).parents[2] / "examples"

#: Started by a framework to find things out, not to compile.
HARMLESS = ("uname", "ldconfig", "lscpu", "sh", "which", "where", "nvidia-smi", "ps")

NVRTC = """
import json, sys
sys.path.insert(0, sys.argv[1])
from kernels import KERNELS
from hotstart.opening import shared
from hotstart.compilers import nvrtc
kernels = [nvrtc.compile(source, arch=arch, name=name, targets=("cubin", "ptx"))
           for name, source in KERNELS.items() for arch in ("sm_90", "sm_100")]
assert all(kernel.cubin and kernel.ptx for kernel in kernels)
shared().close()
print(json.dumps({"compiled": shared().stats()["compiled"], "reused": sum(kernel.from_cache for kernel in kernels)}))
"""


class Machine:
    """Nothing in common with another one but the remote and the list of trusted keys."""

    def __init__(self, team: Team, root: Path, environment: dict[str, str]) -> None:
        for name in ("home", "tmp", "hotstart", "work"):
            (root / name).mkdir(parents=True)
        self.root = root
        self.log = root / "processes"
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL")}
        self.environment = kept | environment | {
            "HOME": str(root / "home"), "USER": root.name, "LOGNAME": root.name, "TMPDIR": str(root / "tmp"),
            "HOTSTART_HOME": str(root / "hotstart"), "HOTSTART_REMOTE": team.url, "HOTSTART_TRUST": team.list.path,
            "HOTSTART_SIGNING_KEY": str(team.directory / "trusted.key"),
            "HOTSTART_TEST_LOG": str(self.log), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{FRAMEWORKS / 'watch'}{os.pathsep}{FRAMEWORKS / 'programs'}",
        }  # fmt: skip

    def run(self, *command: str, **environment: str) -> dict[str, Any]:
        """The last line of its output, and which processes it started."""
        self.log.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, cwd=self.root / "work",
            env=self.environment | environment, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.strip().split("\n")[-1])
        started = self.log.read_text().split("\n") if self.log.exists() else []
        words = [line.split("\x1f") for line in started if line]
        found["processes"] = [
            line for line in words if Path(line[0]).name not in HARMLESS and not Path(line[0]).name.startswith("python")
            and "--version" not in line and "-dumpversion" not in line
        ]  # fmt: skip
        return found


@pytest.fixture(params=["s3", "redis"])
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Machine, Machine]:
    server: Server = request.getfixturevalue("seaweed" if request.param == "s3" else "valkey_server")
    team = Team(tmp_path, f"{server.url(uuid.uuid4().hex)}&timeout=30")
    one, two = (Machine(team, tmp_path / name, server.environment) for name in ("anna", "bert"))
    return one, two


def test_nvrtc(machines: tuple[Machine, Machine]) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC: pip install cuda-bindings nvidia-cuda-nvrtc")
    one, two = machines
    first = one.run("-c", NVRTC, str(EXAMPLES))
    assert first["compiled"] > 4
    second = two.run("-c", NVRTC, str(EXAMPLES))
    assert (second["compiled"], second["reused"]) == (0, first["compiled"])


def test_triton(machines: tuple[Machine, Machine]) -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install triton")
    one, two = machines
    manager = {"TRITON_CACHE_MANAGER": "hotstart.compilers.triton:CacheManager"}
    program = str(FRAMEWORKS / "programs" / "triton_kernel.py")
    first = one.run(program, **manager)
    assert first["compiled"] > 0
    second = two.run(program, **manager)
    assert (second["compiled"], second["reused"], second["processes"]) == (0, first["compiled"], [])


def test_torch(machines: tuple[Machine, Machine]) -> None:
    pytest.importorskip("torch", reason="needs torch")
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("needs a C++ compiler, as torch.compile on a CPU does")
    one, two = machines
    program = [
        "-m",
        "hotstart",
        "run",
        "--name",
        "demo",
        sys.executable,
        str(FRAMEWORKS / "programs" / "torch_compile.py"),
    ]
    first = one.run(*program)
    assert first["compiled"] > 0 and first["processes"]
    # Nobody pushes or pulls: the first run has published what it compiled, the second asks before it starts.
    second = two.run(*program)
    assert (second["compiled"], second["reused"], second["processes"]) == (0, first["compiled"], [])
