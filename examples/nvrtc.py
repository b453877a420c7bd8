"""Real CUDA kernels, compiled once with NVRTC, then loaded by a fresh process: ``python examples/nvrtc.py``.

Needs no GPU: NVRTC compiles for any architecture on any machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time


def start(store: str) -> None:
    """One program start: every kernel for every architecture. Prints what happened as JSON."""
    began = time.perf_counter()
    from kernels import ARCHITECTURES, KERNELS

    import hotstart
    from hotstart.compilers import nvrtc

    rows = []
    with hotstart.Cache(store) as cache:
        for name, source in KERNELS.items():
            for arch in ARCHITECTURES:
                once = time.perf_counter()
                # Key, closure of headers, look-up and, on a miss, NVRTC: through cache.get_or_compile.
                kernel = nvrtc.compile(source, arch=arch, name=name, targets=("cubin", "ptx"), cache=cache)
                spent = time.perf_counter() - once
                where = "disk" if kernel.from_cache else "compiled"
                rows.append([name, arch, where, len(kernel.cubin or b""), spent])
        stats = cache.stats()
    total = time.perf_counter() - began
    print(json.dumps({"rows": rows, "seconds": total, "saved": stats["seconds_saved"], "compiled": stats["compiled"]}))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hotstart-demo-") as store:
        runs = []
        for label in ("cold", "hot"):
            print(f"{label}: a fresh process starts …", flush=True)
            command = [sys.executable, __file__, "--start", store]
            runs.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    cold, hot = runs
    print(f"\n{'kernel':<12}{'arch':<8}{'cubin':>9}   {'cold':>9}  {'':<9}   {'hot':>9}")
    for before, after in zip(cold["rows"], hot["rows"], strict=True):
        name, arch, tier, size, spent = before
        print(
            f"{name:<12}{arch:<8}{size:>7} B   {spent * 1e3:>6.1f} ms  {tier:<9}"
            f" → {after[4] * 1e3:>6.2f} ms  {after[2]}"
        )
    print(
        f"\n{'all of it':<20}{'':>9}   {cold['seconds']:>7.2f} s  {cold['compiled']} compiled"
        f" → {hot['seconds']:>7.3f} s  {hot['compiled']} compiled"
    )
    print(f"\n{hot['saved']:.2f} s of compiling saved; every byte was checked before it was used.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--start"]:
        start(sys.argv[2])
    else:
        main()
