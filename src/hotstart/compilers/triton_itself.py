"""What is known of Triton itself: whether it fits, its own manager, and what its key leaves out.

All that touches Triton's insides is here and in ``Places._chosen``.
"""

from __future__ import annotations

import os
import sys

from ..log import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Releases of Triton this was tried with, from the first up to but not including the second.
TESTED = ((3, 5), (3, 10))

_METHODS = frozenset({"get_file", "get_group", "put", "put_group"})
_ARGUMENTS = ("self", "key", "override", "dump")
_AUTOTUNE = ".autotune.json"


def misfit(manager: type) -> str:
    """Why the installed Triton cannot be served by ``manager``; empty when it can."""
    import triton
    from triton.runtime import cache as theirs

    version = tuple(int(part) for part in triton.__version__.split(".")[:2] if part.isdigit())
    if not TESTED[0] <= version < TESTED[1]:
        first, end = (".".join(map(str, bound)) for bound in TESTED)
        return f"Triton {triton.__version__} is outside the tested range (from {first}, before {end})"
    arguments = theirs.FileCacheManager.__init__.__code__.co_varnames[: len(_ARGUMENTS)]
    if theirs.CacheManager.__abstractmethods__ != _METHODS or arguments != _ARGUMENTS:
        return f"the cache manager of Triton {triton.__version__} has another contract"
    theirs.CacheManager.register(manager)
    return ""


def own_manager(key: str, override: bool, dump: bool) -> Any:
    """Triton's own, which keeps files in Triton's directories."""
    from triton.runtime.cache import FileCacheManager

    return FileCacheManager(key, override=override, dump=dump)


def always_compiles() -> bool:
    """Whether Triton compiles even what it finds (TRITON_ALWAYS_COMPILE)."""
    from triton import knobs

    return bool(knobs.compilation.always_compile)


def describe(text: bytes) -> dict[str, object]:
    """For people who list the store: what the kernel with this metadata was compiled for."""
    import json

    import triton

    about: dict[str, object] = {"triton": triton.__version__}
    try:
        target = json.loads(text)["target"]
        about["target"] = f"{target['backend']} {target['arch']}"
    except (ValueError, KeyError, TypeError):
        pass  # not the metadata of a kernel
    return about


def left_out(name: str) -> str | None:
    """What a file of this name depends on besides Triton's key; None if that is not known, and it must not be kept."""
    if name.endswith(_AUTOTUNE):
        # Triton's key has the architecture alone, and the fastest configuration of an H100 is not that of an H200.
        return device_name() or None
    if is_library(name):
        # Python's ABI is in the file's name and the machine in Triton's key; with an older C library it will not load.
        return _libc()
    return ""


def is_library(name: str) -> bool:
    return name.endswith(".so")


def device_name() -> str:
    """The device that Triton would launch on now, by name and size; empty when it has none that can be named."""
    from triton.runtime import driver

    try:
        active = driver.active
        index = active.get_current_device()
        name = _name_from_torch(active.get_current_target().backend, index) or _name_from_cuda(index)
        properties = active.utils.get_device_properties(index)
    except Exception as error:  # a driver of any backend may raise anything
        say("info", f"the device cannot be named ({error}); autotune results are not kept", once="triton device")
        return ""
    # A slice of a GPU has the name of the whole on some drivers, never its size.
    return f"{name} {properties.get('multiprocessor_count', '')}".strip() if name else ""


def _name_from_torch(backend: str, index: int) -> str:
    torch = sys.modules.get("torch")
    devices = getattr(torch, "xpu" if backend == "xpu" else "cuda", None)
    return str(devices.get_device_name(index)) if devices is not None and devices.is_available() else ""


def _name_from_cuda(index: int) -> str:
    """From the driver itself, where there is no torch."""
    import ctypes

    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), index) or cuda.cuDeviceGetName(name, 256, device):
        return ""
    return name.value.decode("utf-8", "replace")


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "libc"
    except (ValueError, AttributeError):
        return "libc"  # not glibc
