# mypy: ignore-errors
"""One of FlashInfer's own sources as a module of its own: a short compile through its whole build."""

from flashinfer.jit import env, gen_jit_spec
from report import report

spec = gen_jit_spec("page_binding", [env.FLASHINFER_CSRC_DIR / "flashinfer_page_binding.cu"])
spec.build(verbose=False)
report(0, 0)  # nvcc and the linker are processes: counted from outside
