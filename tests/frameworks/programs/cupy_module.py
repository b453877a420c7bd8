# mypy: ignore-errors
"""CuPy's caching compile, to LTO code: the one that ends before a module is loaded onto a GPU."""

from cupy.cuda import compiler
from report import counted, report

compiles = []
counted(compiler, "_compile_using_nvrtc_no_warning", compiles)
# Asked of the device otherwise.
compiler._get_arch_for_options_for_nvrtc = lambda arch=None: (f"-arch=sm_{arch}", "cubin")
source = 'extern "C" __global__ void scale(float* x, float by) { x[threadIdx.x] *= by; }'
code = compiler._compile_module_with_cache(source, ("--std=c++17",), arch="90", to_ltoir=True)
assert len(code) > 1000
report(len(compiles), int(not compiles))
