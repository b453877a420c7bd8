# mypy: ignore-errors
import tilelang
import tilelang.language as tile
from report import counted, report
from tilelang.jit import kernel

compiles = []
counted(kernel.JITKernel, "_compile_and_create_adapter", compiles)


def make(count=1024, block=128):
    @tile.prim_func
    def add(a: tile.Tensor((count,), "float32"), b: tile.Tensor((count,), "float32")):
        with tile.Kernel(tile.ceildiv(count, block), threads=block) as at:
            for i in tile.Parallel(block):
                b[at * block + i] = a[at * block + i] + 1.0

    return add


tilelang.compile(make(), out_idx=[1], target={"kind": "cuda", "arch": "sm_90"})
report(len(compiles), int(not compiles))
