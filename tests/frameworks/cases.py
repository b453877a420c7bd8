"""The programs that compile, one or two a framework; each is a file in ``programs``."""

from __future__ import annotations

from dataclasses import dataclass, field

from hotstart.compilers.frameworks import framework

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hotstart.compilers.contract import Framework


@dataclass(frozen=True)
class Case:
    """One program that compiles with one framework."""

    framework: str
    program: str
    #: Importable where the framework is installed, by ``pip install`` of ``install``.
    module: str
    install: str
    #: What names the GPU to compile for, as there is none, and where a toolkit is; never where a cache is.
    extra: dict[str, str] = field(default_factory=dict)
    #: Programs on PATH without which it cannot compile.
    needs: tuple[str, ...] = ()
    #: What it says itself, each time that it has "compiled" or "reused" something.
    signs: dict[str, str] = field(default_factory=dict)
    #: A process whose command line matches is no compile of the program's: see the notes of the row.
    probe: str = ""
    #: Where it writes without our variables, if that is not the directory in the row: a pattern in the work directory.
    beside: str = ""

    @property
    def row(self) -> Framework:
        return framework(self.framework)


#: Without a GPU Triton cannot ask for its default.
_TRITON = {"TRITON_DEFAULT_FP_FUSION": "1"}

CASES = (
    Case("torch", "torch_compile.py", "torch", "torch==2.13.0", needs=("g++",)),
    Case("triton", "triton_kernel.py", "triton", "triton", extra=_TRITON),
    Case("torch-extensions", "torch_extension.py", "torch", "torch==2.13.0 ninja", needs=("c++", "ninja")),
    Case("jax", "jax_function.py", "jax", "jax"),
    Case("helion", "helion_kernel.py", "helion", "helion", extra=_TRITON),
    Case(
        "flashinfer",
        "flashinfer_module.py",
        "flashinfer",
        "flashinfer-python",
        extra={"FLASHINFER_CUDA_ARCH_LIST": "9.0a", "CUDA_HOME": "{cuda}", "LIBRARY_PATH": "{stubs}"},
        needs=("nvcc", "c++", "ninja"),
    ),
    Case("cupy", "cupy_module.py", "cupy", "cupy-cuda13x nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl"),
    Case("numba", "numba_function.py", "numba", "numba", beside="__pycache__/*.nbi"),
    Case("numba", "numba_kernel.py", "numba_cuda", "'numba-cuda[cu13]'", beside="__pycache__/*.nbi"),
    Case("warp", "warp_kernel.py", "warp", "warp-lang"),
    Case(
        "tilelang", "tilelang_kernel.py", "tilelang", "tilelang", extra={"CUDA_HOME": "{cuda}"}, needs=("nvcc", "g++")
    ),
    Case(
        "cutile",
        "cutile_kernel.py",
        "cuda.tile",
        "cuda-tile nvidia-cuda-tileiras",
        probe=r"/tileiras\x1f\S*/probe\d",
    ),
    Case("cute", "cute_function.py", "cutlass", "nvidia-cutlass-dsl", extra={"CUTE_DSL_ARCH": "sm_90a"}),
    Case("tinygrad", "tinygrad_sum.py", "tinygrad", "tinygrad", extra={"DEV": "CPU"}, needs=("gcc",)),
    Case("tvm-ffi", "tvm_ffi_module.py", "tvm_ffi", "apache-tvm-ffi ninja", needs=("c++", "ninja")),
    Case(
        "quadrants",
        "quadrants_kernel.py",
        "quadrants",
        "quadrants",
        extra={"QD_LOG_LEVEL": "debug"},
        signs={"compiled": "] Cache kernel '", "reused": "' from cache (key="},
    ),
    Case("ninetoothed", "ninetoothed_kernel.py", "ninetoothed", "ninetoothed", extra=_TRITON),
    Case(
        "nvcc",
        "sccache_nvcc.py",
        "pip",  # sccache is a program, not a module
        "sccache",
        extra={"HOTSTART_TEST_NVCC": "{nvcc}"},
        needs=("sccache", "nvcc"),
        probe=r"\x1f-E\x1f",
    ),
)
