"""``python -m benchmarks [PART…] [--quick] [--out DIRECTORY]``; all parts by default."""

from __future__ import annotations

import argparse
import platform
import sys
from importlib import import_module
from pathlib import Path
from time import monotonic

from .common import say

PARTS = (
    *("store", "startup", "policy", "nvrtc", "triton_compile", "handles"),
    *("launch", "launch_torch", "torch_hit", "remote", "picture"),
)
_RESULTS = Path(__file__).parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="a minute instead of five; numbers for orientation only")
    parser.add_argument("--out", type=Path, help="directory for JSON and plots")
    options = parser.parse_args()
    parts = options.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    python = ".".join(platform.python_version_tuple()[:2])
    out = options.out or _RESULTS / ("quick" if options.quick else f"{platform.machine()}-python{python}")
    missed = []
    for part in parts:
        began = monotonic()
        missed += [
            target for target in import_module(f"{__package__}.{part}").run(out, quick=options.quick) if not target.kept
        ]
        say(f"{part}: {monotonic() - began:.0f} s")
    if missed:
        say(f"missed: {'; '.join(f'{target.what} ({target.where})' for target in missed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
