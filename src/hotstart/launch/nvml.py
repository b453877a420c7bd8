"""What NVML says of the GPUs: names, architectures, driver. Loaded by ``ctypes``, only where there is a device."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 64
_NAME = 96


def ask() -> tuple[list[dict[str, str]], str] | None:
    """(GPUs, driver); None where NVML cannot be loaded or does not answer. Never raises."""
    import ctypes

    try:
        nvml: Any = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return None
    except (OSError, AttributeError):
        return None
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return None
        text = ctypes.create_string_buffer(_NAME)
        driver = text.value.decode("ascii", "replace") if nvml.nvmlSystemGetDriverVersion(text, _NAME) == 0 else ""
        found = []
        for index in range(min(count.value, _MOST)):
            handle = ctypes.c_void_p()
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
                continue
            device = {}
            if nvml.nvmlDeviceGetName(handle, text, _NAME) == 0:
                device["name"] = text.value.decode("utf-8", "replace")
            major, minor = ctypes.c_int(), ctypes.c_int()
            if nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0:
                device["arch"] = f"sm_{major.value}{minor.value}"
            found.append(device)
        return found, driver
    except AttributeError:
        return None  # an NVML without one of these
    finally:
        nvml.nvmlShutdown()
