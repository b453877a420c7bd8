# mypy: ignore-errors
import warp
from report import counted, report
from warp._src import build

compiles = []
counted(build, "build_cpu", compiles)


@warp.kernel
def scale(x: warp.array(dtype=float), by: float):
    at = warp.tid()
    x[at] = x[at] * by


values = warp.ones(8, dtype=float, device="cpu")
warp.launch(scale, dim=8, inputs=[values, 3.0], device="cpu")
assert values.numpy().tolist() == [3.0] * 8
report(len(compiles), int(not compiles))
