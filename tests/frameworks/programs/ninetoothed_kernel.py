# mypy: ignore-errors
import ninetoothed
import torch
from ninetoothed import Symbol, Tensor
from no_gpu import count_compiles
from report import report

hits = count_compiles()
BLOCK = Symbol("BLOCK", constexpr=True)


def arrangement(x, y):
    return x.tile((BLOCK,)), y.tile((BLOCK,))


def application(x, y):
    y = x + 1  # noqa: F841


kernel = ninetoothed.make(arrangement, application, (Tensor(1), Tensor(1)))
kernel(torch.ones(1024), torch.ones(1024), BLOCK=128)
report(hits.count(False), hits.count(True))
