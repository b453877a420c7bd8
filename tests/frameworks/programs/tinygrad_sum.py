# mypy: ignore-errors
from report import report
from tinygrad import Tensor

assert (Tensor([1.0, 2.0, 3.0]) * 2 + 1).tolist() == [3.0, 5.0, 7.0]
report(0, 0)  # the C compiler is a process: counted from outside
