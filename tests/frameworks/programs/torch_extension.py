# mypy: ignore-errors
"""A plain Python module in C++: torch's own headers would take half a minute to read."""

from report import report
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <Python.h>
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "answers", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_answers() { return PyModule_Create(&module); }
"""

answers = load_inline(name="answers", cpp_sources=SOURCE, no_implicit_headers=True)
assert answers.answer() == 42
report(0, 0)  # the compiler is a process: counted from outside
