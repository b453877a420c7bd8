# mypy: ignore-errors
import quadrants as qd
from report import report

qd.init(arch=qd.cpu)


@qd.kernel
def total(n: qd.i32) -> qd.f32:
    result = 0.0
    for i in range(n):
        result += i * 0.5
    return result


assert total(1000) == 249750.0
qd.reset()
report(0, 0)  # at log level debug Quadrants says which kernels it compiled and which it had: counted from outside
