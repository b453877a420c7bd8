"""The demo behind ``make demo``: the same torch.compile program twice under ``hotstart run``, cold and hot.

Two fresh processes. Between them everything is deleted that a reboot or a new container would delete: the
frameworks' cache directories and the temporary directory. Only the store stays. Needs no GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def program() -> None:
    """What a user would have: a model, compiled at its first call. Prints how long that took."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mix, self.up, self.down = (
                nn.LayerNorm(64),
                nn.Linear(64, 192),
                nn.Linear(64, 256),
                nn.Linear(256, 64),
            )

        def forward(self, x: Any) -> Any:
            q, k, v = self.mix(self.norm(x)).chunk(3, -1)
            x = x + torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.LayerNorm(64)).eval()
    given = torch.randn(2, 16, 64)
    with torch.no_grad():
        expected = model(given)
        began = time.perf_counter()
        found = torch.compile(model)(given)
        first = time.perf_counter() - began
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    print(json.dumps({"first": first}))


def start(place: Path, shims: Path) -> dict[str, Any]:
    """One fresh process under ``hotstart run``; what it said, what hotstart noted, and the compilers started."""
    calls = place / "compilers"
    calls.write_text("")
    temporary = place / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    environ = {
        **os.environ,
        "PATH": f"{shims}:{os.environ['PATH']}",
        "TMPDIR": str(temporary),
        "HOTSTART_HOME": str(place / "hotstart"),
    }
    command = [sys.executable, "-m", "hotstart", "run", "--json", "--", sys.executable, __file__, "--program"]
    began = time.perf_counter()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    whole = time.perf_counter() - began
    if done.returncode != 0:
        raise SystemExit(f"the program ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    record = json.loads(done.stderr.strip().splitlines()[-1])
    said = json.loads(done.stdout.strip().splitlines()[-1])
    compiles = [line for line in calls.read_text().splitlines() if not all(w.startswith("-") for w in line.split()[1:])]
    return {**said, "whole": whole, "compilers": len(compiles), "torch": record["frameworks"].get("torch", {})}


def count_compilers(place: Path) -> Path:
    """Stand-ins for the compilers on PATH: each writes its call down and goes on to the real one."""
    shims = place / "bin"
    shims.mkdir()
    for name in ("cc", "c++", "gcc", "g++", "clang", "clang++"):
        real = shutil.which(name)
        if real is not None:
            (shims / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "{place}/compilers"\nexec "{real}" "$@"\n')
            (shims / name).chmod(0o755)
    return shims


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hotstart-demo-") as made:
        place = Path(made)
        shims = count_compilers(place)
        print("cold: a torch.compile program under hotstart run, a fresh process, nothing compiled yet …", flush=True)
        cold = start(place, shims)
        frameworks = place / "hotstart" / "frameworks"
        files = sum(1 for path in frameworks.rglob("*") if path.is_file())
        shutil.rmtree(frameworks)
        print(f"      {files} files of the frameworks' caches deleted, and the temporary directory", flush=True)
        print("hot:  the same command, a fresh process …", flush=True)
        hot = start(place, shims)
    print(f"\n{'':<28}{'cold':>12}{'hot':>12}")
    for label, name, unit in (
        ("first call of the model", "first", "s"),
        ("the whole command", "whole", "s"),
        ("compiler processes", "compilers", ""),
    ):
        before, after = (f"{run[name]:.2f} {unit}" if unit else str(run[name]) for run in (cold, hot))
        print(f"{label:<28}{before:>12}{after:>12}")
    for label, name in (("units compiled", "new"), ("units restored", "restored"), ("units read", "hits")):
        print(f"{label:<28}{_number(cold, name):>12}{_number(hot, name):>12}")
    print(f"\n{cold['first'] / hot['first']:.0f} times faster to the first result; every byte was checked first.")


def _number(run: dict[str, Any], name: str) -> str:
    value = run["torch"].get(name, 0)
    return "?" if value is None else str(value)


if __name__ == "__main__":
    if sys.argv[1:] == ["--program"]:
        program()
    else:
        main()
