"""torch's global settings: which of them a result depends on, read for the key and again at every call.

One list for both, so that nothing can be in the key and not be watched. Each is a
C function, some 50 ns; all of them cost a call 2 µs.
"""

from __future__ import annotations

import os
from functools import partial

import torch

from .reasons import NotHotError
from .versions import own_ptxas

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Name in the key, function in torch._C, arguments.
_SETTINGS: tuple[tuple[str, str, tuple[object, ...]], ...] = (
    ("grad", "is_grad_enabled", ()),
    ("inference", "is_inference_mode_enabled", ()),
    ("autocast cpu", "is_autocast_enabled", ("cpu",)),
    ("autocast cpu dtype", "get_autocast_dtype", ("cpu",)),
    ("autocast cuda", "is_autocast_enabled", ("cuda",)),
    ("autocast cuda dtype", "get_autocast_dtype", ("cuda",)),
    ("autocast cache", "is_autocast_cache_enabled", ()),
    ("default dtype", "get_default_dtype", ()),
    ("matmul precision", "_get_float32_matmul_precision", ()),
    ("matmul fp32", "_get_fp32_precision_getter", ("cuda", "matmul")),
    ("conv fp32", "_get_fp32_precision_getter", ("cuda", "conv")),
    ("rnn fp32", "_get_fp32_precision_getter", ("cuda", "rnn")),
    ("mkldnn matmul fp32", "_get_fp32_precision_getter", ("mkldnn", "matmul")),
    ("mkldnn conv fp32", "_get_fp32_precision_getter", ("mkldnn", "conv")),
    ("fp16 reduction", "_get_cublas_allow_fp16_reduced_precision_reduction", ()),
    ("bf16 reduction", "_get_cublas_allow_bf16_reduced_precision_reduction", ()),
    ("fp16 accumulation", "_get_cublas_allow_fp16_accumulation", ()),
    ("deterministic", "_get_deterministic_algorithms", ()),
    ("deterministic warns", "_get_deterministic_algorithms_warn_only", ()),
    ("fill memory", "_get_deterministic_fill_uninitialized_memory", ()),
    ("cudnn", "_get_cudnn_enabled", ()),
    ("cudnn benchmark", "_get_cudnn_benchmark", ()),
    ("cudnn deterministic", "_get_cudnn_deterministic", ()),
    ("mkldnn", "_get_mkldnn_enabled", ()),
    ("mkldnn deterministic", "_get_mkldnn_deterministic", ()),
    ("sdp flash", "_get_flash_sdp_enabled", ()),
    ("sdp efficient", "_get_mem_efficient_sdp_enabled", ()),
    ("sdp math", "_get_math_sdp_enabled", ()),
    ("sdp math reduction", "_get_math_sdp_allow_fp16_bf16_reduction", ()),
    ("sdp cudnn", "_get_cudnn_sdp_enabled", ()),
    ("sdp overrideable", "_get_overrideable_sdp_enabled", ()),
    ("threads", "get_num_threads", ()),
    ("dispatch modes", "_len_torch_dispatch_stack", ()),
)

#: Of the same things, what sets them; the rest follows from these or does not reach a compile.
_SETTERS: dict[str, Callable[[Any], object]] = {
    "matmul precision": lambda value: torch.set_float32_matmul_precision(value),
    "deterministic": lambda value: torch.use_deterministic_algorithms(value),
    "fp16 reduction": lambda value: torch._C._set_cublas_allow_fp16_reduced_precision_reduction(*_pair(value)),
    "bf16 reduction": lambda value: torch._C._set_cublas_allow_bf16_reduced_precision_reduction(*_pair(value)),
    "cudnn": lambda value: torch._C._set_cudnn_enabled(value),
    "cudnn benchmark": lambda value: torch._C._set_cudnn_benchmark(value),
    "cudnn deterministic": lambda value: torch._C._set_cudnn_deterministic(value),
    "mkldnn": lambda value: torch._C._set_mkldnn_enabled(value),
    "mkldnn deterministic": lambda value: torch._C._set_mkldnn_deterministic(value),
    "sdp flash": lambda value: torch._C._set_sdp_use_flash(value),
    "sdp efficient": lambda value: torch._C._set_sdp_use_mem_efficient(value),
    "sdp math": lambda value: torch._C._set_sdp_use_math(value),
    "sdp cudnn": lambda value: torch._C._set_sdp_use_cudnn(value),
    "threads": lambda value: torch.set_num_threads(value),
}


def _pair(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _find(name: str, function: str, arguments: tuple[object, ...]) -> Callable[[], object] | None:
    """The reader of one setting; None where this build of torch has no such thing."""
    found = getattr(torch._C, function, None) or getattr(torch, function, None)
    if found is None:
        return None
    reader = partial(found, *arguments) if arguments else found
    try:
        reader()
    except (RuntimeError, TypeError):
        return None
    return reader


def _function_modes() -> object:
    """The modes themselves: one may be exchanged for another, as ``set_default_device`` does."""
    count = torch._C._len_torch_function_stack()
    return count and [torch._C._get_function_stack_at(at) for at in range(count)]


def _dual_level() -> object:
    """Of forward-mode differentiation: a package would lose the tangents of its inputs."""
    return torch.autograd.forward_ad._current_level


_FOUND = [(name, _find(name, function, arguments)) for name, function, arguments in _SETTINGS]
_FOUND += [("function modes", _function_modes), ("dual level", _dual_level)]
_NAMES = [name for name, reader in _FOUND if reader is not None]
#: To be called one after another; the order is that of ``_NAMES``.
READERS = [reader for _, reader in _FOUND if reader is not None]

#: Variables that say where files go, who is told or which machine this is, and nothing about the result.
_ELSEWHERE = (
    *("CACHE_DIR", "_HOME", "LOG", "TRACE", "DEBUG_DIR", "DUMP", "EXTENSIONS_DIR", "COMPILE_THREADS"),
    "WARM_POOL",
)
_PREFIXES = ("TORCH", "TRITON_", "PYTORCH_", "AOTI_", "AOT_INDUCTOR_")
_OTHERS = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCHFT_", "TORCH_CPP_", "PYTORCH_CUDA_ALLOC")


def now() -> list[object]:
    """The settings as they are, in a form to compare with what ``now`` gave earlier."""
    return [reader() for reader in READERS]


def describe(values: list[object]) -> dict[str, object]:
    """``now()`` with names, as plain data for the key. Raises NotHotError for a mode that changes every operation."""
    found = dict(zip(_NAMES, values, strict=True))
    if found.pop("dispatch modes", 0):
        raise NotHotError("a TorchDispatchMode is active", "leave it before the call")
    if found.pop("dual level", -1) != -1:
        raise NotHotError("a level of forward-mode differentiation is entered", "call it outside of dual_level()")
    if found.pop("function modes", 0):
        found["default device"] = _default_device()
    if _transforms():
        raise NotHotError("a functorch transform (vmap, grad) is active", "compile outside of it")
    return {name: value if isinstance(value, bool | int | str | tuple) else str(value) for name, value in found.items()}


def _default_device() -> str:
    """The device that ``torch.set_default_device`` set. Raises NotHotError for any other TorchFunctionMode."""
    modes = [torch._C._get_function_stack_at(at) for at in range(torch._C._len_torch_function_stack())]
    if len(modes) != 1 or type(modes[0]).__name__ != "DeviceContext":
        raise NotHotError("a TorchFunctionMode is active", "leave it before the call")
    return str(modes[0].device.type)


def _transforms() -> bool:
    peek = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def global_hooks() -> None:
    """Raise NotHotError if hooks are registered for all modules: they run around every one of them."""
    for name, value in vars(torch.nn.modules.module).items():
        if name.startswith("_global_") and name.endswith("_hooks") and value:
            raise NotHotError(f"hooks for all modules are registered ({name})", "register them on the modules")


def apply(described: dict[str, Any]) -> None:
    """Set in this process what ``describe`` said of another: for the helper, before it compiles."""
    for name, setter in _SETTERS.items():
        if name in described:
            setter(described[name])


def environment() -> dict[str, str]:
    """The variables that torch and Triton read, as far as they can change what is compiled.

    Less what Inductor itself sets as it compiles: a process that has compiled something
    would have other keys than a fresh one, and no hits.
    """
    found = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_PREFIXES) and not name.startswith(_OTHERS) and not any(part in name for part in _ELSEWHERE)
    }
    if found.get("TRITON_PTXAS_PATH") == own_ptxas():
        del found["TRITON_PTXAS_PATH"]
    return found


def device(kind: str, index: int) -> dict[str, object]:
    """What code for this device depends on: GPU name, arch and CUDA, or nothing besides the CPU."""
    if kind == "cpu":
        return {"type": "cpu"}
    if kind != "cuda":
        raise NotHotError(f"packages for {kind} have not been tried")
    properties = torch.cuda.get_device_properties(index)
    return {
        "type": kind,
        "name": properties.name,
        "arch": str(getattr(properties, "gcnArchName", "") or f"sm_{properties.major}{properties.minor}"),
        "processors": properties.multi_processor_count,
        "cuda": str(torch.version.cuda),
        "hip": str(torch.version.hip),
    }


#: Of /proc/cpuinfo: what -march=native sees.
_CPU_LINES = ("flags", "Features", "model name", "CPU implementer", "CPU part", "cpu family", "model", "vendor_id")
_cpu: dict[str, str] = {}


def cpu() -> dict[str, str]:
    """The processor as a compiler that tunes for it sees it; packages for a GPU have code for it as well."""
    if not _cpu:
        _cpu.update(machine=os.uname().machine, capability=str(torch._C._get_cpu_capability()))
        try:
            with open("/proc/cpuinfo", "rb") as file:
                text = file.read(8192).decode("ascii", "replace")  # the first processor's; hundreds may follow
        except OSError:
            text = ""  # not Linux: the capability that torch found has to do
        for line in text.partition("\n\n")[0].splitlines():
            label, _, value = line.partition(":")
            if label.strip() in _CPU_LINES:
                _cpu[label.strip()] = value.strip()
    return _cpu
