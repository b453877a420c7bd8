"""AOTInductor over one exported program: ``python -m hotstart.torch.build FOLDER`` writes its ``package.pt2``.

The compile sees fake tensors alone, those the program was traced with: no memory for
weights is needed, on the host or the device. Exit status 0, or 1 with the reason on the
last line of stdout.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: What a package needs whatever was asked for: tensors that are constants stay what they are.
_OPTIONS: dict[str, Any] = {"always_keep_tensor_constants": True}


def build(folder: str) -> None:
    import torch

    from . import state, versions

    with open(f"{folder}/job.json") as file:
        job = json.load(file)
    state.apply(job["settings"])
    for name, value in job["about"]["config"].items():
        module, _, setting = name.rpartition("config.")
        __import__(f"{module}config")
        setattr(sys.modules[f"{module}config"], setting, value)
    program = torch.export.load(f"{folder}/program.pt2")
    module = versions.unlifted(program)
    inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    first = job["model_tensors"]
    options = {**_OPTIONS, **job["options"]}
    with torch.no_grad():
        versions.compile_package(module, (inputs[:first], inputs[first:]), options, f"{folder}/new.pt2")
    os.replace(f"{folder}/new.pt2", f"{folder}/package.pt2")


def die_with_parent() -> None:
    """End when the helper does: it holds the lock, and who takes it next begins anew."""
    if sys.platform.startswith("linux"):
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
        if os.getppid() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str) -> int:
    try:
        build(folder)
    except Exception as error:
        import traceback

        traceback.print_exc()
        lines = str(error).splitlines()
        print(f"{type(error).__name__}: {lines[0] if lines else ''}")
        return 1
    return 0


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(sys.argv[1]))
