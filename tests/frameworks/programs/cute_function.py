# mypy: ignore-errors
"""CuTe DSL up to the launch, which fails for want of a driver once the compiled function was kept."""

import cutlass
from cutlass import cute
from cutlass.base_dsl.dsl import BaseDSL
from report import counted, report

compiles = []
counted(BaseDSL, "_compile_or_jit_module", compiles)


@cute.kernel
def show(n: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    if thread == 0:
        cute.printf("{}", n)


@cute.jit
def start(n: cutlass.Int32):
    show(n).launch(grid=[1, 1, 1], block=[32, 1, 1])


try:
    start(3)
except Exception as error:
    if "cudaError" not in str(error):
        raise
report(len(compiles), int(not compiles))
