"""What counts as the same result: deviations that a dtype explains, and nothing beyond."""

from __future__ import annotations

from typing import Any

import pytest

from hotstart.torch.compare import difference, no_worse
from hotstart.torch.verify import widened

torch: Any = pytest.importorskip("torch", reason="needs torch (any build, no GPU)")


def test_rounding_passes_and_more_does_not() -> None:
    torch.manual_seed(0)
    for dtype, small, large in ((torch.float32, 1e-4, 1e-2), (torch.bfloat16, 5e-3, 0.2), (torch.float64, 1e-8, 1e-4)):
        wanted = torch.randn(1000, dtype=torch.float64)
        noise = torch.randn(1000, dtype=torch.float64)
        assert difference((wanted * (1 + small * noise)).to(dtype), wanted.to(dtype)) == ""
        assert "off by" in difference((wanted * (1 + large * noise)).to(dtype), wanted.to(dtype))


def test_one_wrong_element_is_found() -> None:
    wanted = torch.ones(100_000)
    found = wanted.clone()
    found[5] = 2.0
    assert "off by" in difference(found, wanted)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_has_to_be_so_in_both(number: float) -> None:
    wanted = torch.ones(10)
    found = wanted.clone()
    found[3] = number
    assert "infinities" in difference(found, wanted)
    assert "infinities" in difference(wanted, found)
    assert difference(found, found.clone()) == ""
    assert "nothing finite" in difference(torch.full((2,), number), torch.full((2,), number))


def test_shape_dtype_and_strides_count() -> None:
    base = torch.randn(4, 6)
    for other in (base.double(), base.reshape(6, 4), base.T.contiguous().T):
        assert difference(other, base)
    assert difference(base[:1].clone(), base.T.contiguous().T[:1].contiguous()) == ""


def test_integers_may_differ_where_candidates_were_equal() -> None:
    wanted = torch.zeros(1000, dtype=torch.long)
    found = wanted.clone()
    found[:10] = 1
    assert difference(found, wanted) == ""
    found[:100] = 1
    assert "differ" in difference(found, wanted)


def test_low_precision_is_measured_against_high() -> None:
    torch.manual_seed(0)
    exact = torch.randn(1000)
    eager, ours, wrong = (exact + size * torch.randn(1000) for size in (0.1, 0.12, 0.3))
    assert no_worse(ours, eager, exact)
    assert not no_worse(wrong, eager, exact)
    assert not no_worse(torch.zeros(1000), torch.zeros(1000), exact), "eager that is all wrong proves nothing"


class Norm(torch.nn.Module):  # type: ignore[misc]
    """Casts up and back by name, as the norms of language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Buffer(torch.linspace(0.5, 1.5, 8, dtype=torch.bfloat16))

    def forward(self, x: Any, w: Any) -> Any:
        up = x.to(torch.float32)
        return (up * torch.rsqrt(up.pow(2).mean(-1, keepdim=True) + 1e-6)).to(torch.bfloat16) * self.scale @ w


def test_a_program_that_names_its_precision_can_be_run_in_a_higher_one() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(4, 8, dtype=torch.bfloat16), torch.randn(8, 8, dtype=torch.bfloat16)
    program = torch.export.export(Norm(), (x, w)).module(check_guards=False)
    low, exact = program(x, w), widened(program, torch.bfloat16)(x.float(), w.float())
    assert (low.dtype, exact.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(program(x, w), low), "the program itself is as it was"
    assert no_worse(low, low, exact)
    assert not no_worse(low + 1, low, exact)
    wide = Norm()
    wide.scale = torch.nn.Buffer(wide.scale.float())
    up = x.float()
    expected = (up * torch.rsqrt(up.pow(2).mean(-1, keepdim=True) + 1e-6)) * wide.scale @ w.float()
    torch.testing.assert_close(exact, expected)


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [("inf", "inf", True), ("nan", "nan", True), ("inf", "-inf", False), ("nan", "inf", False), ("-inf", "nan", False)],
)
def test_an_infinity_is_not_another_and_not_nan(found: str, wanted: str, same: bool) -> None:
    one, other = torch.tensor([1.0, float(found)]), torch.tensor([1.0, float(wanted)])
    assert (difference(one, other) == "") == same
