"""What AOTInductor of torch 2.11 leaves out of max-autotune: the product with a bias that cuBLASLt does in one kernel.

Inductor offers it as ``bias_addmm``, a Python function, which C++ cannot call, and so turns
it off for packages. ``addmm`` is then measured with a bias that was expanded to a matrix,
for which ATen copies it first; a Triton kernel wins instead, and a GPT of 12 layers took
6 % longer a step than with torch.compile. torch 2.12 gives ATen the bias as it is.

For the process that builds a package and nothing else: what is patched here stays so.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def offer_bias() -> None:
    """Let ``bias_addmm`` compete in packages: measured as it is, written as ATen's ``addmm`` with the bias's row."""
    from torch._inductor import compile_fx, ir
    from torch._inductor.kernel import mm
    from torch._inductor.select_algorithm import ExternKernelCaller

    settings, output_node = compile_fx.get_cpp_wrapper_config, ExternKernelCaller.output_node

    def with_cublaslt() -> dict[str, object]:
        return {**settings(), "triton.autotune_cublasLt": True}

    def of_choice(self: Any) -> Any:
        if self.choice is not mm.aten_bias_addmm:
            return output_node(self)
        bias, *factors = self.input_nodes
        storage, whole = ir.as_storage_and_layout(bias)
        # It is offered where the rows are one and the same (stride 0): the first stands for all.
        layout = ir.FixedLayout(whole.device, whole.dtype, whole.size[1:], whole.stride[1:], whole.offset)
        row = ir.ReinterpretView(data=storage, layout=layout)
        return mm.aten_addmm.bind([row, *factors], self.layout, **self.kwargs).output_node()

    compile_fx.get_cpp_wrapper_config = with_cublaslt
    ExternKernelCaller.output_node = of_choice
