"""Everything here that torch does not promise to keep: the loader, the C++ checks, the way to AOTInductor.

Tried with torch 2.11 to 2.13. Outside that range nothing of it is used and the model
runs as plain torch.compile. Importing this does not import Dynamo or Inductor.
"""

from __future__ import annotations

import os

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

OLDEST, NEWEST = (2, 11), (2, 13)

#: The name under which a program lies in its package.
_MODEL = "model"


def _release() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())


def unsupported() -> str:
    """Why this torch is not used with packages; "" when it is."""
    if not OLDEST <= _release() <= NEWEST:
        tried = " to ".join(".".join(map(str, end)) for end in (OLDEST, NEWEST))
        return f"torch {torch.__version__} is outside the tested range ({tried})"
    guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    if not hasattr(guards, "TensorGuards") or not hasattr(getattr(torch._C, "_aoti", None), "AOTIModelPackageLoader"):
        return f"this build of torch {torch.__version__} has no package loader"
    return ""


def own_ptxas() -> str:
    """What Inductor sets TRITON_PTXAS_PATH to as it compiles, if it is not set and the file is there."""
    home = os.path.dirname(torch.__file__)
    return f"{home}/bin/ptxas" if _release() < (2, 13) else f"{home}/_inductor/bin/ptxas"


def tensor_guards(tensors: Sequence[Any], sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
    """A C++ object whose ``check(*tensors)`` compares class, dtype, device, requires_grad, sizes and strides.

    Dynamo's own checks without Dynamo: 0.1 µs a tensor where Python needs 2. None in
    ``sizes`` and ``strides`` stands for any number.
    """
    guards: Any = torch._C._dynamo.guards
    return guards.TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(size) for size in sizes],
        dynamic_dims_strides=[list(stride) for stride in strides],
    )


def load(path: str, device_index: int) -> Any:
    """The loaded package; its ``run(list of tensors)`` gives a list of tensors. Raises RuntimeError.

    ``run`` is for one thread at a time. The other kind that torch has keeps a pool of
    instances of the model, and before it uses one again waits for the GPU to have ended
    the call before: of one instance each call waits for the last, which no torch.compile does.
    """
    aoti: Any = torch._C._aoti
    single_threaded, instances = True, 1
    return aoti.AOTIModelPackageLoader(path, _MODEL, single_threaded, instances, device_index)


def unlifted(program: Any) -> Any:
    """The exported program as a graph module, without the guards on its inputs: the callers check those."""
    try:
        return program.module(check_guards=False)
    except TypeError:
        return program.module()  # a release that has no such guards


def compile_package(module: Any, inputs: tuple[Any, ...], options: dict[str, Any], path: str) -> None:
    """Compile a graph module with AOTInductor and write the package to ``path``."""
    import tempfile

    import torch._inductor
    from torch._inductor.package import package_aoti

    if _release() == (2, 11):
        from .gemm import offer_bias

        offer_bias()
    made: Any = torch._inductor.aot_compile(module, inputs, options={**options, "aot_inductor.package": True})
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as empty:
        package_aoti(path, [_without_source(file, empty) for file in made])


def _without_source(file: Any, empty: str) -> Any:
    """An empty file of the same name for the C++ that a package was made from.

    It would be half of the package, and nothing reads it. Its name has to be there:
    torch before 2.13 finds the metadata of a package by it.
    """
    if not isinstance(file, str) or not file.endswith((".cpp", ".h")):
        return file
    stand_in = f"{empty}/{os.path.basename(file)}"
    with open(stand_in, "wb"):
        return stand_in


def graphs() -> tuple[int, int]:
    """How many graphs Dynamo has made and how often it had to break one, in this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"]), sum(counters["graph_break"].values())


def broke(before: tuple[int, int]) -> bool:
    """Whether what ran since ``before`` was more than one graph. Not every break is counted as such."""
    made, breaks = graphs()
    return breaks != before[1] or made > before[0] + 1


def changed_settings() -> dict[str, object]:
    """What was changed in the configuration of Inductor and functorch, if they are loaded; {} if nothing was.

    A module that is not loaded has its defaults, changed at most by the environment,
    which is in the key anyway. Compared by value: ``config.patch`` leaves values behind
    that are set but equal to the default.
    """
    import sys

    found: dict[str, object] = {}
    for name in ("torch._inductor.config", "torch._functorch.config"):
        config: Any = sys.modules.get(name)
        for setting, entry in getattr(config, "_config", {}).items() if config is not None else ():
            if entry.alias is not None or setting.startswith("_") or setting in _NOT_SETTINGS:
                continue
            value = getattr(config, setting)
            default = entry.default
            for standing in (entry.env_value_default, entry.env_value_force):
                default = default if type(standing) is object else standing
            if type(value) is not type(default) or value != default:
                found[f"{name}.{setting}"] = value
    return found


#: Settings that say where files go, who is told, or what torch keeps for itself.
_NOT_SETTINGS = frozenset(
    (
        *("aot_inductor.output_path", "global_cache_dir", "trace.debug_dir", "profiler_mark_wrapper_call"),
        *("compile_threads", "worker_start_method"),
        *("fx_graph_cache", "fx_graph_remote_cache", "autotune_local_cache", "autotune_remote_cache"),
        *("bundled_autotune_remote_cache", "enable_autograd_cache", "enable_remote_autograd_cache"),
    )
)
