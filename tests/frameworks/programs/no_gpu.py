# mypy: ignore-errors
"""A Triton driver that knows which GPU to compile for and has none to launch on.

Triton asks its driver for the target before it compiles and for a launcher after;
everything between, the whole compile, is Triton's own.
"""

import triton
from triton.backends.compiler import GPUTarget


class Utilities:
    def get_device_properties(self, _device):
        return {"max_shared_mem": 227 << 10, "max_num_regs": 1 << 16, "multiprocessor_count": 132, "warpSize": 32}

    def load_binary(self, _name, _kernel, _shared, _device):
        return 0, 0, 16, 0, 1024  # module, function, registers, spills, threads

    def unload_module(self, _module):
        return None


class Driver:
    """Compiles for sm_90, runs nothing."""

    utils = Utilities()

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, _device=0):
        return 0

    def get_device_capability(self, _device=0):
        return 9, 0

    def get_active_torch_device(self):
        import torch

        return torch.device("cpu")

    def get_benchmarker(self):
        return lambda _call, **_options: [1.0]

    def map_python_to_cpp_type(self, kind):
        return kind

    @staticmethod
    def launcher_cls(_source, _metadata):
        return lambda *_arguments, **_options: None


def count_compiles():
    """Installs the driver; the list returned gains a member a compile: whether Triton's cache had it."""
    triton.runtime.driver.set_active(Driver())
    return listen()


def listen():
    hits = []
    triton.knobs.compilation.listener = lambda **seen: hits.append(seen["cache_hit"])
    return hits
