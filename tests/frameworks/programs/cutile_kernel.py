# mypy: ignore-errors
import io

import cuda.tile as ct
from cuda.tile import _compile, compilation
from report import report

answers = []
real = _compile.cache_lookup
_compile.cache_lookup = lambda *key: answers.append(real(*key)) or answers[-1]


@ct.kernel
def show(n, m):
    ct.printf("%d %d", n + ct.bid(0), m)


scalars = [compilation.ScalarConstraint(ct.int32)] * 2
signature = compilation.KernelSignature(scalars, compilation.CallingConvention.cutile_python_v1())
cubin = io.BytesIO()
compilation.export_kernel(show, [signature], cubin, gpu_code="sm_100", output_format="cubin")
assert cubin.getvalue().startswith(b"\x7fELF")
report(answers.count(None), len(answers) - answers.count(None))
