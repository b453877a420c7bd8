"""On a GPU: compile with NVRTC, load, launch, check the result; then again in fresh processes, from the store.

Run on a machine with a GPU, from the root of the repository:

    PYTHONPATH=src python benchmarks/gpu/nvrtc_launch.py

Prints one JSON object: cold against hot time from the first line of a program to a
checked result, in fresh processes; the same for cuda.core's own cache; and that the
kernels computed the same numbers.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import time

PROGRAM = r"""
import json, sys, time
began = time.perf_counter()
sys.path.insert(0, "examples")
from kernels import GEMM, LAYERNORM, SAXPY, SOFTMAX
import numpy as np
from cuda.core import Device, LaunchConfig, ObjectCode, Program, ProgramOptions, launch
from cuda.core.utils import FileStreamProgramCache
imported = time.perf_counter()
import hotstart
from hotstart.compilers import nvrtc
from hotstart.compilers.cuda_core import ProgramCache
importing = time.perf_counter() - imported

how, place = sys.argv[1], sys.argv[2]
device = Device()
device.set_current()
stream = device.create_stream()
ready = time.perf_counter()
arch = f"sm_{device.arch}"
sources = {"saxpy": SAXPY, "softmax": SOFTMAX, "gemm32": GEMM, "layernorm": LAYERNORM}
codes, hits = {}, 0
if how == "hotstart":
    cache = hotstart.Cache(place)
    for name, source in sources.items():
        kernel = nvrtc.compile(source, arch=arch, name=name, cache=cache)
        hits += kernel.from_cache
        codes[name] = ObjectCode.from_cubin(kernel.cubin)
elif how == "program cache":
    cache = hotstart.Cache(place)
    for name, source in sources.items():
        program = Program(source, "c++", options=ProgramOptions(arch=arch))
        codes[name] = program.compile("cubin", cache=ProgramCache(cache))
    hits = cache.stats()["hits"]["disk"]
else:
    cache = FileStreamProgramCache(place)
    before = len(cache)
    for name, source in sources.items():
        codes[name] = Program(source, "c++", options=ProgramOptions(arch=arch)).compile("cubin", cache=cache)
    hits = before
compiled = time.perf_counter()

import torch
torch.cuda.set_device(device.device_id)
n = 1 << 20
x, y = torch.rand(n, device="cuda"), torch.rand(n, device="cuda")
expected = 2.5 * x + y
torch.cuda.synchronize()
launched = time.perf_counter()
kernel = codes["saxpy"].get_kernel("saxpy")
launch(stream, LaunchConfig(grid=(n + 255) // 256, block=256), kernel,
       np.float32(2.5), x.data_ptr(), y.data_ptr(), np.int32(n))
rows, columns = 512, 1024
inputs, outputs = torch.randn(rows, columns, device="cuda"), torch.empty(rows, columns, device="cuda")
torch.cuda.synchronize()
launch(stream, LaunchConfig(grid=rows, block=256), codes["softmax"].get_kernel("softmax"),
       inputs.data_ptr(), outputs.data_ptr(), np.int32(columns))
stream.sync()
right = bool(torch.allclose(y, expected)) and bool(torch.allclose(outputs, torch.softmax(inputs, 1), atol=1e-6))
print(json.dumps({"device": device.name, "arch": arch, "hits": hits, "right": right,
                  "import hotstart ms": round(importing * 1e3, 2),
                  "compile or load ms": round((compiled - ready) * 1e3, 2),
                  "launch and check ms": round((time.perf_counter() - launched) * 1e3, 2)}))
"""


def main() -> None:
    result: dict[str, object] = {"python": platform.python_version(), "arch": platform.machine()}
    with tempfile.TemporaryDirectory() as root:
        # As an installed package would be: with bytecode.
        subprocess.run([sys.executable, "-m", "compileall", "-q", "src/hotstart"], check=False)
        for how in ("hotstart", "program cache", "cuda.core FileStream"):
            runs: list[dict[str, object]] = []
            for number in range(4):
                command = [sys.executable, "-c", PROGRAM, how, f"{root}/{how}"]
                began = time.perf_counter()
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    runs.append({"failed": done.stderr[-800:]})
                    break
                row = json.loads(done.stdout.splitlines()[-1])
                runs.append({"run": "cold" if number == 0 else "hot", **row, "process s": time.perf_counter() - began})
            result[how] = runs
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
