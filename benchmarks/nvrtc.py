"""NVRTC: a hit through ``compilers.nvrtc.compile`` beside cuda.core's ``Program.compile(cache=…)``.

Same sources, one run, taking turns. What is timed is what a caller waits for: the key
with all its headers, the look-up, the checked bytes. Then a source that includes
CUTLASS: its closure of some hundreds of files, known and unknown, beside compiling it.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter_ns

import hotstart
from hotstart.compilers import nvrtc
from hotstart.keys import headers

from .common import Call, Target, Times, places, rotate, save, say, spread, table
from .common import targets_table as show_targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OURS, OURS_MEMORY, THEIRS = "hotstart, disk", "hotstart, memory tier", "cuda.core FileStream"

KERNEL = 'extern "C" __global__ void k(float* a) { a[threadIdx.x] *= SCALE; }'
SOURCES = {
    "no header": "#define SCALE 2.f\n" + KERNEL,
    "two headers": '#include "scale.h"\n' + KERNEL,
}
CUTLASS = '#include <cutlass/gemm/device/gemm.h>\nextern "C" __global__ void k(float* a) { a[0] = 1.f; }'


def run(out: Path, *, quick: bool) -> list[Target]:
    from cuda.core import Program, ProgramOptions
    from cuda.core.utils import FileStreamProgramCache

    rows: dict[str, dict[str, Times]] = {}
    with places() as found:
        place = found["disk"]
        before = os.getcwd()
        os.environ["HOTSTART_HOME"] = f"{place}/home"
        work = Path(place) / "work"
        work.mkdir()
        os.chdir(work)
        try:
            Path("scale.h").write_text('#include "unit.h"\n#define SCALE (2.f * UNIT)\n')
            Path("unit.h").write_text("#define UNIT 1.f\n")
            # Young files are read again until their times can be trusted; old ones only looked at.
            for header in ("scale.h", "unit.h"):
                os.utime(header, (1_700_000_000, 1_700_000_000))
            wait_until_settled()
            disk = hotstart.Cache(f"{place}/store", memory=0)
            memory = hotstart.Cache(f"{place}/store")
            theirs = FileStreamProgramCache(f"{place}/theirs")
            options = ProgramOptions(arch="sm_90")
            for label, source in SOURCES.items():

                def ours(cache: hotstart.Cache, source: str = source) -> object:
                    return nvrtc.compile(source, arch="sm_90", cache=cache).cubin

                def peer(_: object, source: str = source) -> object:
                    return Program(source, "c++", options=options).compile("cubin", cache=theirs).code

                calls = {OURS: Call(ours, [disk]), OURS_MEMORY: Call(ours, [memory]), THEIRS: Call(peer, [None])}
                for call in calls.values():
                    call.call(call.args[0])
                rows[label] = rotate(calls, 200 if quick else 2000, 50)
            cutlass = _cutlass(quick)
        finally:
            os.chdir(before)
            del os.environ["HOTSTART_HOME"]
    table(
        "an NVRTC hit, µs",
        ("source", "cache", "p50", "p90", "p99", "max"),
        [(label, name, *spread(times)) for label, found in rows.items() for name, times in found.items()],
    )
    targets = [
        Target(f"NVRTC hit / {THEIRS}", label, found[OURS].p50 / found[THEIRS].p50, 0.5)
        for label, found in rows.items()
    ]
    data: dict[str, Any] = {
        "hits": {label: {name: times.summary() for name, times in found.items()} for label, found in rows.items()},
        "cutlass": cutlass,
    }
    if cutlass:
        table("a source that includes CUTLASS", ("what", "value"), cutlass.items())
        share = cutlass["hit ms"] / cutlass["compile ms"]
        targets.append(Target("CUTLASS hit / compile", f"{cutlass['files']} files", share, 1 / 200))
    show_targets("NVRTC", targets)
    save(out, "nvrtc", {**data, "targets": [target.record() for target in targets]})
    return targets


def wait_until_settled() -> None:
    """Let the headers grow older than the granularity of file times, as headers in real life are."""
    import time

    time.sleep(2.5)


def _cutlass(quick: bool) -> dict[str, Any]:
    """Compile once for real, then hit: with the closure known to the process, to the machine, and to nobody."""
    try:
        import cutlass_library
    except ImportError:
        say("no nvidia-cutlass: its headers are not measured")
        return {}
    from importlib.util import find_spec

    include = Path(cutlass_library.__file__).parent / "source" / "include"
    if not include.is_dir():
        say("nvidia-cutlass has no headers here")
        return {}
    spec = find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    cuda = [
        str(path) for root in roots for name in ("include", "include/cccl") for path in Path(root).glob(f"cu13/{name}")
    ]
    options = [f"-I{include}", *(f"-I{path}" for path in cuda), "-std=c++17", "-default-device"]
    cache = hotstart.Cache(f"{os.environ['HOTSTART_HOME']}/cutlass", memory=0)
    arguments: dict[str, Any] = {"arch": "sm_90", "options": options, "cache": cache}
    first = _timed(lambda: nvrtc.compile(CUTLASS, **arguments))
    known = min(_timed(lambda: nvrtc.compile(CUTLASS, **arguments)) for _ in range(5 if quick else 30))
    headers.forget()
    recalled = _timed(lambda: nvrtc.compile(CUTLASS, **arguments))
    kernel = nvrtc.compile(CUTLASS, **arguments)
    given = ["--gpu-architecture=sm_90", *options]
    key = nvrtc._key(CUTLASS.encode(), "sm_90", given, None, (), "default_program", ("cubin",))
    return {
        "files": len(key[1].names),
        "compile ms": round(kernel.cost * 1e3, 1),
        "miss ms, compile and closure": round(first / 1e6, 1),
        "hit ms": round(known / 1e6, 3),
        "hit ms, new process": round(recalled / 1e6, 3),
        "cached": kernel.from_cache,
    }


def _timed(work: Any) -> int:
    began = perf_counter_ns()
    work()
    return perf_counter_ns() - began
