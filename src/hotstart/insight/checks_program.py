"""Checks of what runs: variables that are set already, frameworks of untested versions, imports that come too early."""

from __future__ import annotations

import os
import sys

from ..compilers.contract import AT_IMPORT
from ..compilers.frameworks import FRAMEWORKS
from .doctor import ERROR, NOTE, WARNING, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator, Mapping

    from ..compilers.contract import Framework
    from .doctor import Patient

_ON = frozenset(("1", "true", "yes", "on", "y"))
_OFF = frozenset(("0", "false", "no", "off", "n"))

#: Switches that turn a framework's cache off: variable, the values that do, what happens then.
_SWITCHES: tuple[tuple[str, frozenset[str], str], ...] = (
    ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", _ON, "torch.compile keeps nothing and compiles everything each time"),
    ("TORCHINDUCTOR_FX_GRAPH_CACHE", _OFF, "torch.compile keeps no graphs and compiles them each time"),
    ("TORCHINDUCTOR_FRESH_CACHE", _ON, "torch.compile starts with an empty cache each time"),
    ("TRITON_ALWAYS_COMPILE", _ON, "Triton compiles every kernel each time"),
    ("JAX_ENABLE_COMPILATION_CACHE", _OFF, "JAX keeps nothing"),
    ("CUDA_CACHE_DISABLE", _ON, "the CUDA driver keeps nothing"),
    ("CUPY_CACHE_IN_MEMORY", _ON, "CuPy keeps nothing on disk"),
    ("VLLM_DISABLE_COMPILE_CACHE", _ON, "vLLM keeps nothing"),
    ("NUMBA_DISABLE_JIT", _ON, "Numba compiles nothing at all"),
)


def switches(patient: Patient) -> Iterator[Finding]:
    """hotstart or a framework's cache turned off."""
    if patient.environ.get("HOTSTART_DISABLE", "").lower() in _ON:
        yield Finding(ERROR, "HOTSTART_DISABLE is set: hotstart does nothing", "unset HOTSTART_DISABLE")
    if patient.environ.get("HOTSTART_READ_ONLY", "").lower() in _ON:
        yield Finding(NOTE, "HOTSTART_READ_ONLY is set: nothing new is kept", "unset HOTSTART_READ_ONLY")
    for name, values, text in _SWITCHES:
        value = patient.environ.get(name, "")
        if value.lower() in values:
            yield Finding(WARNING, f"{name}={value}: {text}", f"unset {name}")


def variables(patient: Patient) -> Iterator[Finding]:
    """Cache directories that were chosen already: they are left alone."""
    from ..launch.environment import plan

    for framework, kept in plan(patient.root, patient.environ).left.items():
        for name in kept:
            value = patient.environ.get(name, "")
            yield Finding(
                WARNING,
                f"{name} is set to {value!r}: {framework} stays there and is not kept by hotstart",
                f"unset {name}, or hotstart run --force",
            )


def _installed(patient: Patient) -> dict[str, str]:
    """Distributions of the Python that would run, by name."""
    from ..launch import program

    command = [patient.python or program.which("python3", patient.environ) or sys.executable]
    found = program.find(command, patient.environ, os.getcwd())
    return {name: version for name, (version, _) in program.distributions(found.sites).items()}


def versions(patient: Patient) -> Iterator[Finding]:
    """Frameworks whose release this hotstart was not tried with."""
    installed = _installed(patient)
    for row in FRAMEWORKS:
        for distribution in row.distributions:
            version = installed.get(distribution)
            if version is not None and row.tested:
                yield from _untested(row, distribution, version)


def _untested(row: Framework, distribution: str, version: str) -> Iterator[Finding]:
    # An entry is a version, or a distribution and its version where a row has several.
    named = [text.rpartition(" ") for text in row.tested]
    tested = [number for name, _, number in named if name in ("", distribution)]
    if not tested or any(_release(number) == _release(version) for number in tested):
        return
    near = any(_release(number)[:2] == _release(version)[:2] for number in tested)
    yield Finding(
        NOTE if near else WARNING,
        f"{distribution} {version} was not tested with this hotstart ({row.title}: {', '.join(tested)} was)",
        "" if near else "it is redirected all the same; if a second run still compiles, see: hotstart why",
    )


def _release(version: str) -> tuple[str, ...]:
    """Without what comes after a ``+``: the local part says how it was built."""
    return tuple(version.partition("+")[0].split("."))


def python(patient: Patient) -> Iterator[Finding]:
    """What this hotstart itself runs on."""
    if sys.version_info < (3, 14):
        try:
            from backports import zstd  # noqa: F401  # whether it is there is the question
        except ImportError:
            yield Finding(
                WARNING,
                "backports.zstd is not installed: what is captured takes many times the space",
                f"{sys.executable} -m pip install backports.zstd",
            )
    for module in ("blake3", "xxhash"):
        try:
            __import__(module)
        except ImportError as error:
            yield Finding(ERROR, f"{module} cannot be imported: {error}", f"{sys.executable} -m pip install {module}")


# -- imports before init -----------------------------------------------------------------


def imported_too_early(modules: Mapping[str, object]) -> list[tuple[str, str]]:
    """(framework, module) for each framework that has read its variables already, of ``sys.modules`` or the like."""
    return [
        (row.name, module) for row in FRAMEWORKS if row.read == AT_IMPORT for module in row.modules if module in modules
    ]


def imports(patient: Patient) -> Iterator[Finding]:
    """Of a program that calls ``hotstart.init()``: what it imports before."""
    if not patient.script:
        return
    import ast

    try:
        with open(patient.script, "rb") as file:
            tree = ast.parse(file.read(), patient.script)
    except OSError as error:
        yield Finding(ERROR, f"{patient.script}: {error.strerror}", "name a Python file")
        return
    except (SyntaxError, ValueError) as error:
        yield Finding(ERROR, f"{patient.script} is not Python: {error}", "name a Python file")
        return
    call = _first_init(tree)
    if call is None:
        return  # started by hotstart run, which needs no line in it
    too_late = {module: row for row in FRAMEWORKS if row.read == AT_IMPORT for module in row.modules}
    for line, module in _imported(tree):
        for name, row in too_late.items():
            if line < call and (module == name or module.startswith(name + ".")):
                yield Finding(
                    ERROR,
                    f"{patient.script}:{line} imports {module} before hotstart.init() in line {call}: "
                    f"{row.title} has chosen its directory by then",
                    "call hotstart.init() first, above all other imports; or start it with hotstart run",
                )
                break


def _first_init(tree: ast.AST) -> int | None:
    """The line of the first ``hotstart.init()``, or of ``init()`` when that is hotstart's."""
    import ast

    names = {"hotstart.init"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "hotstart":
            names |= {item.asname or item.name for item in node.names if item.name == "init"}
        elif isinstance(node, ast.Import):
            names |= {f"{item.asname}.init" for item in node.names if item.name == "hotstart" and item.asname}
    calls = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) in names]
    return min(calls, default=None)


def _imported(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, module) of every import, in order."""
    import ast

    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, item.name) for item in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.lineno, f"{node.module}.{item.name}") for item in node.names]
    return sorted(found)
