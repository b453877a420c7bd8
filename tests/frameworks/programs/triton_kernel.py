# mypy: ignore-errors
import triton
import triton.language as tl
from no_gpu import listen
from report import report
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, count, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


hits = listen()
signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "count": "i32", "BLOCK": "constexpr"}
source = ASTSource(fn=add, signature=signature, constexprs={"BLOCK": 256})
kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32))
assert kernel.asm["cubin"].startswith(b"\x7fELF")
report(hits.count(False), hits.count(True))
