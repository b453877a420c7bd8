# mypy: ignore-errors
"""numba-cuda up to the cubin: what it asks the device is answered, what it loads onto it is only linked."""

from types import SimpleNamespace

import numba
from numba import cuda
from numba.cuda import dispatcher
from numba.cuda.cudadrv import devices
from report import report

device = SimpleNamespace(compute_capability=(9, 0), id=0)
devices.get_context = lambda _number=None: SimpleNamespace(device=device)
dispatcher.get_current_device = lambda: device
dispatcher._Kernel.bind = lambda kernel: kernel._codelibrary.get_cubin(cc=(9, 0))


@cuda.jit(cache=True)
def scale(x, by):
    at = cuda.grid(1)
    if at < x.size:
        x[at] *= by


scale.compile((numba.float32[::1], numba.float32))
report(sum(scale.stats.cache_misses.values()), sum(scale.stats.cache_hits.values()))
