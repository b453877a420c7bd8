"""Whether two results are the same within what their dtype can hold."""

from __future__ import annotations

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Relative deviation (root mean square) that a fused kernel may have from eager; a single element may have more.
_TOLERANCE = {
    torch.float64: 1e-6,
    torch.float32: 1e-3,
    torch.float16: 1e-2,
    torch.bfloat16: 3e-2,
    torch.complex64: 1e-3,
    torch.complex128: 1e-6,
}
_ONE_ELEMENT = 10.0
#: Of integers (an argmax, a mask): how many may differ, where two candidates were all but equal.
_DIFFERING = 0.02


def difference(found: Any, wanted: Any, what: str = "the result") -> str:
    """Why ``found`` is not ``wanted``, in a sentence; "" when it is."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape or found.device != wanted.device:
        return f"{what} is {_kind(found)} instead of {_kind(wanted)}"
    if _strides(found) != _strides(wanted):
        return f"{what} has strides {tuple(found.stride())} instead of {tuple(wanted.stride())}"
    if not found.numel():
        return ""
    tolerance = _TOLERANCE.get(wanted.dtype)
    if tolerance is None:
        same = found.eq(wanted) if not wanted.dtype.is_floating_point else found.float().eq(wanted.float())
        part = 1.0 - same.double().mean().item()
        return f"{part:.1%} of {what} differ" if part > _DIFFERING else ""
    if wanted.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        tolerance *= 10
    wide = torch.complex128 if wanted.dtype.is_complex else torch.float64
    one, other = found.detach().to(wide), wanted.detach().to(wide)
    finite = torch.isfinite(other)
    if not bool((torch.isfinite(one) == finite).all()):
        return f"{what} has infinities or NaN where eager has none, or the other way round"
    ours, theirs = one[~finite], other[~finite]
    if not bool(((ours == theirs) | (ours.isnan() & theirs.isnan())).all()):
        return f"{what} has NaN or an infinity where eager has another one"
    one, other = one[finite], other[finite]
    if not one.numel():
        return f"{what} has nothing finite in it to compare"
    scale = other.abs()
    size = max(float((scale**2).mean().sqrt()), 1e-30)
    deviation = (one - other).abs()
    if float((deviation**2).mean().sqrt()) > tolerance * size + 1e-7:
        return f"{what} is off by {float(deviation.max()):.3g} (its size is {size:.3g})"
    worst = float((deviation / (scale + size)).max())
    if worst > tolerance * _ONE_ELEMENT:
        return f"an element of {what} is off by {worst:.2%}"
    return ""


def no_worse(found: Any, wanted: Any, exact: Any) -> bool:
    """Whether ``found`` is as near to a result of higher precision as ``wanted``, eager's own, is.

    A deep network in bfloat16 is some per cent off whoever computes it: eager rounds after
    every operation, a fused kernel less often. Then it is not the distance between the two
    that says whether one of them is wrong.
    """
    if not found.is_floating_point() or found.shape != exact.shape or _strides(found) != _strides(wanted):
        return False
    ours, theirs = (found.double() - exact.double()), (wanted.double() - exact.double())
    error, allowed = float(ours.pow(2).mean().sqrt()), float(theirs.pow(2).mean().sqrt())
    size = float(exact.double().pow(2).mean().sqrt())
    # Eager that is off by more than half of the result proves nothing.
    return allowed < size / 2 and error <= 1.5 * allowed


def _kind(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"


def _strides(tensor: Any) -> list[int]:
    """Those that are used: of a dimension of size 1 none is."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and tensor.numel()]
