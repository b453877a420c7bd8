"""Which changes can be the reason of a miss in which framework.

The number of threads is in the key of Inductor's graphs and not in Triton's; another
Triton is a reason for torch, another JAX is none. What the tables here say of variables
and distributions comes from the frameworks' own keys (docs/compilers.md).
"""

from __future__ import annotations

#: How well a change explains a miss of a framework.
LIKELY, POSSIBLE, UNRELATED = 2, 1, 0

HEADERS = (".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl")
NATIVE = (*HEADERS, ".c", ".cc", ".cpp", ".cxx", ".cu", ".hip", ".cl")

_TORCH = frozenset(("torch", "torch-extensions", "helion", "vllm", "sglang", "flashinfer", "deepgemm"))
_TRITON = frozenset(("triton", "torch", "helion", "vllm", "sglang", "ninetoothed"))
_CXX = frozenset(("torch", "torch-extensions", "flashinfer", "nvcc", "tvm-ffi", "tilelang", "vllm", "sglang"))
_HOST = frozenset(("torch", "torch-extensions", "jax", "numba", "warp", "quadrants", "tinygrad", "vllm", "sglang"))

#: Beginnings of variables, and whose keys they are in. The first that fits decides.
_VARIABLES: tuple[tuple[tuple[str, ...], frozenset[str]], ...] = (
    (("TORCH_EXTENSIONS", "MAX_JOBS", "TORCH_CUDA_ARCH_LIST"), frozenset(("torch-extensions", "flashinfer"))),
    (("TORCH", "PYTORCH_", "INDUCTOR_", "ATEN_", "AOT_"), _TORCH),
    (("TRITON_",), _TRITON),
    (("JAX_", "XLA_", "TF_XLA_", "LIBTPU_"), frozenset(("jax",))),
    (
        ("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "DNNL_", "ONEDNN_", "VECLIB_"),
        frozenset(("torch", "vllm", "sglang")),
    ),
    (("CUPY_",), frozenset(("cupy",))),
    (("NUMBA_",), frozenset(("numba",))),
    (("WARP_",), frozenset(("warp",))),
    (("TILELANG_",), frozenset(("tilelang",))),
    (("TVM_",), frozenset(("tvm-ffi", "tilelang"))),
    (("HELION_",), frozenset(("helion",))),
    (("CUTE_", "CUTLASS_", "QUACK_"), frozenset(("cute", "torch"))),
    (("FLASHINFER_",), frozenset(("flashinfer",))),
    (("VLLM_",), frozenset(("vllm",))),
    (("SGLANG_",), frozenset(("sglang",))),
    (("DG_",), frozenset(("deepgemm", "vllm", "sglang"))),
    (("MIOPEN_",), frozenset(("miopen",))),
    (("TI_", "QD_"), frozenset(("quadrants",))),
    (("TINY_", "DEV", "CACHEDB"), frozenset(("tinygrad",))),
    (("NVCC_", "CUDAHOSTCXX"), frozenset(("nvcc", "torch-extensions", "flashinfer"))),
    (("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "HIP_VISIBLE"), frozenset(("torch", "jax", "vllm", "sglang"))),
    (("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "CPLUS_", "LIBRARY_PATH"), _CXX),
)

#: Distributions besides those in a framework's own row that are part of what it compiles.
_DISTRIBUTIONS: dict[str, frozenset[str]] = {
    "torch": _TORCH,
    "triton": _TRITON,
    "pytorch-triton": _TRITON,
    "triton-windows": _TRITON,
    "jaxlib": frozenset(("jax",)),
    "cuda-tile": frozenset(("cutile",)),
    "nvidia-cuda-nvrtc": frozenset(("cupy", "warp", "cutile", "numba", "torch", "tilelang", "deepgemm")),
    "nvidia-cuda-nvcc": frozenset(("nvcc", "torch-extensions", "flashinfer", "triton", "tilelang")),
    "ninja": frozenset(("torch-extensions", "flashinfer")),
    "llvmlite": frozenset(("numba",)),
}


def bearing(cause: str, subject: str, framework: str) -> int:
    """Whether a change of this cause and subject can be why ``framework`` missed: LIKELY, POSSIBLE or UNRELATED."""
    if cause in ("python", "machine", "program", "source", "option", "device"):
        return _of_source(subject, framework) if cause == "source" else LIKELY
    if cause == "version":
        return _of_distribution(subject, framework)
    if cause == "variable":
        return _of_variable(subject, framework)
    if cause == "threads":
        return LIKELY if framework in ("torch", "vllm", "sglang") else UNRELATED
    if cause == "header":
        return LIKELY if framework in _CXX or framework in ("cupy", "warp", "numba", "cuda") else POSSIBLE
    if cause == "cpu":
        return LIKELY if framework in _HOST else UNRELATED
    if cause == "driver":
        return LIKELY if framework in ("cuda", "jax") else POSSIBLE
    if cause in ("compiler", "place"):
        return LIKELY if framework in _CXX and (cause == "compiler" or subject in _own(framework)) else POSSIBLE
    return POSSIBLE  # number of GPUs, files that nothing is seen to import, the user's name


def _of_source(name: str, framework: str) -> int:
    if name.endswith(NATIVE):
        return LIKELY if framework in _CXX or framework in ("cupy", "nvcc") else POSSIBLE
    return LIKELY


def _of_distribution(name: str, framework: str) -> int:
    known = _DISTRIBUTIONS.get(name)
    if name in _own(framework) or (known is not None and framework in known):
        return LIKELY
    # A compiler of somebody else's is not the reason; a library of models or kernels may be.
    return UNRELATED if known is not None or _is_a_framework(name) else POSSIBLE


def _of_variable(name: str, framework: str) -> int:
    for prefixes, frameworks in _VARIABLES:
        if name.startswith(prefixes):
            return LIKELY if framework in frameworks else UNRELATED
    return POSSIBLE


def _own(framework: str) -> tuple[str, ...]:
    from ..compilers.frameworks import FRAMEWORKS

    own = next((row.distributions for row in FRAMEWORKS if row.name == framework), ())
    return (*own, "torch") if framework in _TORCH else own


def _is_a_framework(distribution: str) -> bool:
    from ..compilers.frameworks import FRAMEWORKS

    return any(distribution in row.distributions for row in FRAMEWORKS)
