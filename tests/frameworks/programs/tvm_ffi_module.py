# mypy: ignore-errors
import tvm_ffi.cpp
from report import report

module = tvm_ffi.cpp.load_inline(
    name="counting", cpp_sources="int next_of(int x) { return x + 1; }", functions=["next_of"]
)
assert module.next_of(41) == 42
report(0, 0)  # the C++ compiler is a process: counted from outside
