# mypy: ignore-errors
"""nvcc through sccache; the server, which keeps the directory it was started with, is stopped again."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from report import report

source = Path("kernel.cu")
source.write_text('extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2.f; }')
nvcc = os.environ["HOTSTART_TEST_NVCC"]
with tempfile.TemporaryDirectory() as private:
    os.environ["SCCACHE_SERVER_UDS"] = f"{private}/socket"
    try:
        command = [nvcc, "-c", "-arch=sm_90", str(source), "-o", "kernel.o"]
        if subprocess.run(["sccache", *command], check=False).returncode != 0:
            subprocess.run(command, check=True)
            print("this sccache does not understand this nvcc, which compiles without it: see the notes of the row")
            raise SystemExit(77)
        shown = subprocess.run(["sccache", "--show-stats", "--stats-format=json"], check=True, capture_output=True)
    finally:
        subprocess.run(["sccache", "--stop-server"], check=False, capture_output=True)
seen = json.loads(shown.stdout)["stats"]
report(sum(seen["cache_misses"]["counts"].values()), sum(seen["cache_hits"]["counts"].values()))
