"""The demo behind ``make demo``: real CUDA kernels, compiled once, then loaded by a fresh process.

Needs no GPU: NVRTC compiles for any architecture on any machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time


def compile_kernel(source: str, name: str, arch: str) -> dict[str, bytes]:
    """Real NVRTC, called directly. Returns cubin and PTX."""
    from cuda.bindings import nvrtc

    def ok(result: tuple[object, ...]) -> object:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"{name}: {result[0]}")
        return result[1] if len(result) > 1 else None

    program = ok(nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, None, None))
    options = [f"--gpu-architecture={arch}".encode()]
    ok(nvrtc.nvrtcCompileProgram(program, len(options), options))
    ptx = b" " * ok(nvrtc.nvrtcGetPTXSize(program))  # type: ignore[operator]
    ok(nvrtc.nvrtcGetPTX(program, ptx))
    cubin = b" " * ok(nvrtc.nvrtcGetCUBINSize(program))  # type: ignore[operator]
    ok(nvrtc.nvrtcGetCUBIN(program, cubin))
    return {"cubin": cubin, "ptx": ptx}


def start(store: str) -> None:
    """One program start: every kernel for every architecture. Prints what happened as JSON."""
    from kernels import ARCHITECTURES, KERNELS

    import hotstart

    began = time.perf_counter()
    rows = []
    with hotstart.Cache(store) as cache:
        for name, source in KERNELS.items():
            for arch in ARCHITECTURES:
                toolchain = "nvrtc " + _nvrtc_version()
                key = hotstart.Key("nvrtc", name=name, source=source, arch=arch, toolchain=toolchain)
                once = time.perf_counter()
                entry = cache.get_or_compile(key, lambda: compile_kernel(source, name, arch))  # noqa: B023  # called now
                spent = time.perf_counter() - once
                rows.append([name, arch, entry.tier, len(entry["cubin"]), spent])
        stats = cache.stats()
    total = time.perf_counter() - began
    print(json.dumps({"rows": rows, "seconds": total, "saved": stats["seconds_saved"], "compiled": stats["compiled"]}))


def _nvrtc_version() -> str:
    """The patch release: NVRTC itself only tells major and minor, and two patches give different code."""
    from importlib.metadata import version

    return version("nvidia-cuda-nvrtc")


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
