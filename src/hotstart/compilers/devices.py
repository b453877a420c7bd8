"""The device of this process, by name, and its driver: what timings depend on besides the code."""

from __future__ import annotations

import sys

from ..errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MODULE = "/proc/driver/nvidia/version"


def this_device(index: int | None = None) -> tuple[str, str]:
    """(name, driver) of a device, the current one by default: ``("NVIDIA H200", "580.65.06 cuda 13.0")``.

    The name tells apart what an architecture does not, a MIG slice included. The
    driver is the release of the kernel module and the CUDA version of the user's
    half, since containers combine the two freely. Raises UsageError when there is none.
    """
    reasons = []
    for ask in (_from_torch, _from_driver):
        try:
            return ask(index)
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {error}".splitlines()[0])
    raise UsageError(f"no device to name here ({'; '.join(reasons)}); say device= and driver=")


def _from_torch(index: int | None) -> tuple[str, str]:
    """Whoever has torch running has a current device in it, CUDA or ROCm."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        raise RuntimeError("torch is not running on a device")
    name = torch.cuda.get_device_name(index)
    if torch.version.hip:
        return name, f"hip {torch.version.hip}"
    return name, f"{_module_release()} cuda {_version(torch._C._cuda_getDriverVersion())}".strip()


def _from_driver(index: int | None) -> tuple[str, str]:
    from cuda.bindings import driver

    def ok(result: Any) -> Any:
        if int(result[0]) != 0:
            raise RuntimeError(f"{result[0].name}")
        return result[1] if len(result) == 2 else None

    ok(driver.cuInit(0))
    if index is None:
        current = driver.cuCtxGetDevice()
        device = current[1] if int(current[0]) == 0 else ok(driver.cuDeviceGet(0))
    else:
        device = ok(driver.cuDeviceGet(index))
    name = ok(driver.cuDeviceGetName(256, device)).split(b"\0")[0].decode()
    return name, f"{_module_release()} cuda {_version(ok(driver.cuDriverGetVersion()))}".strip()


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


_release: str | None = None


def _module_release() -> str:
    """The release of the kernel module, such as 580.65.06; empty where it does not say.

    Read once: it takes half a millisecond and cannot change under a process that uses it.
    """
    global _release
    if _release is None:
        words: list[str] = []
        try:
            with open(_MODULE, encoding="ascii", errors="replace") as file:
                words = file.readline().split()
        except OSError:
            pass  # another platform, or a container that hides it
        _release = next((word for word in words if word[:1].isdigit() and "." in word), "")
    return _release
