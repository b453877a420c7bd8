"""Which compiler this is, down to its patch release and the bytes of its files.

``nvrtcVersion()`` says 13.4 for 13.4.59 and for 13.4.92, which compile the same
source to different cubins. So a compiler is known here by the BLAKE3 digests of
the files it consists of, with the version they state as a courtesy to readers.

An identity is computed once per process. Across processes it is remembered in a
memo (``keys.memo``) under inode, size and times of every file involved, so that a
process that only hits neither loads nor reads a hundred megabytes of compiler.

Every function takes ``memo_dir``, where memos are kept: None means hotstart's home,
"" nowhere. Every function raises UncacheableError when there is no such compiler.
"""

from __future__ import annotations

import os
import sys

from ...errors import UncacheableError
from . import libraries
from .identity import COMPUTED, LOADED, Toolchain, digest_files, identify, status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .identity import Found

__all__ = ["Toolchain", "cxx", "forget", "nvcc", "nvjitlink", "nvrtc", "nvvm", "ptxas", "triton"]

#: Of the environment variables NVRTC 13 reads (seen by watching getenv), those that change
#: its output: NV_NVVM_VERSION=nvvm-latest gives other PTX, the second another LTO-IR.
_NVRTC_SETTINGS = ("NV_NVVM_VERSION", "LLVM_OVERRIDE_PRODUCER")

# os.environ finds out that a name is missing by raising and catching KeyError, which would be a
# tenth of a hit. What it keeps behind it is a dict, of encoded names where names are bytes.
_ENVIRON = getattr(os.environ, "_data", os.environ)
_NVRTC_SETTINGS_AS_KEPT = (*_NVRTC_SETTINGS, *[name.encode() for name in _NVRTC_SETTINGS])

#: What nvcc runs besides itself, from the directory it is in.
_NVCC_PARTS = ("cudafe++", "ptxas", "fatbinary", "nvlink", "nvcc.profile", "../nvvm/bin/cicc")

_LIBDEVICE = "nvvm/libdevice/libdevice.10.bc"


def nvrtc(memo_dir: str | None = None) -> Toolchain:
    """NVRTC and its built-in library, as ``cuda.bindings`` would load them in this process."""
    base = COMPUTED.get("nvrtc") or _library(libraries.NVRTC, memo_dir)
    for name in _NVRTC_SETTINGS_AS_KEPT:
        if name in _ENVIRON:
            settings = tuple([f"{name}={os.environ[name]}" for name in _NVRTC_SETTINGS if name in os.environ])
            return Toolchain(base.name, base.version, base.digests, base.watched, settings)
    return base


def nvjitlink(memo_dir: str | None = None) -> Toolchain:
    """nvJitLink, as ``cuda.bindings`` would load it in this process."""
    return COMPUTED.get("nvJitLink") or _library(libraries.NVJITLINK, memo_dir)


def nvvm(memo_dir: str | None = None) -> Toolchain:
    """libNVVM, and the libdevice of its toolkit where it has one."""
    return COMPUTED.get("nvvm") or _library(libraries.NVVM, memo_dir)


def _library(library: libraries.Library, memo_dir: str | None) -> Toolchain:
    path = LOADED.get(library.name) or libraries.find(library)
    if path is None:
        raise UncacheableError(f"no {library.sonames[0]} in wheels, conda, loader path or CUDA_PATH", "toolchain")

    def compute() -> Found:
        version, names = _stated(path)
        if library is libraries.NVVM:
            names = [f"../{_LIBDEVICE}", f"../../{_LIBDEVICE}"]
        beside = [os.path.join(os.path.dirname(path), name) for name in names]
        if library is libraries.NVRTC:
            # Not beside NVRTC, its built-in library is wherever the loader finds it.
            beside += [found for name in names for found in libraries.system((name,))]
        digests, watched = digest_files([path, *[name for name in beside if os.path.isfile(name)][:1]])
        return version, digests, watched

    found = COMPUTED[library.name] = identify(library.name, path, compute, memo_dir)
    return found


def _stated(path: str) -> tuple[str, list[str]]:
    """The release a compiler's binary states in its text, and the built-in library it would open."""
    import mmap
    import re

    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        release = re.search(rb"release [\d.]+, V([\d.]+)", data)
        builtins = re.search(rb"libnvrtc-builtins\.so\.[\d.]*\d", data)
        version = release[1].decode() if release else ""
        return version, [builtins[0].decode()] if builtins else []


def ptxas(path: str | None = None, memo_dir: str | None = None) -> Toolchain:
    """ptxas: the one at ``path``, of CUDA_PATH or CUDA_HOME, or the first on the PATH."""
    return _program("ptxas", path or _in_toolkit("ptxas"), (), memo_dir)


def nvcc(path: str | None = None, memo_dir: str | None = None) -> Toolchain:
    """nvcc with everything it runs, found as ``ptxas`` is. The host compiler is not part of it: see ``cxx``."""
    return _program("nvcc", path or _in_toolkit("nvcc"), (*_NVCC_PARTS, f"../{_LIBDEVICE}"), memo_dir)


def cxx(command: str = "g++", memo_dir: str | None = None) -> Toolchain:
    """A host compiler (g++, clang++) with the compiler proper, the assembler and the linker behind it."""
    return _program("cxx", command, None, memo_dir)


def triton(memo_dir: str | None = None) -> Toolchain:
    """The installed Triton, through what its wheel recorded of it. Triton is not imported.

    As with every installed distribution, a file edited in place inside it goes
    unnoticed, unless it is one of its libraries. Which ptxas it runs is asked
    with ``ptxas``: a variable of the environment can name another than its own.
    """
    known = COMPUTED.get("triton")
    if known is not None:
        return known
    for place in sys.path:
        package = os.path.join(place or os.getcwd(), "triton")
        if os.path.isfile(os.path.join(package, "__init__.py")):
            break
    else:
        raise UncacheableError("triton is not installed", "toolchain")

    def compute() -> Found:
        from . import programs

        return programs.package(package)

    found = COMPUTED["triton"] = identify("triton", package, compute, memo_dir)
    return found


def _in_toolkit(command: str) -> str:
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        path = os.path.join(os.environ.get(variable) or "", "bin", command)
        if os.environ.get(variable) and os.path.isfile(path):
            return path
    return command


def _program(name: str, command: str, parts: tuple[str, ...] | None, memo_dir: str | None) -> Toolchain:
    """A program and the files beside it; ``parts`` None asks the program itself for them."""
    path = _which(command)
    # Which compiler a driver starts depends on the PATH as well.
    asked = path if parts is not None else f"{path} {os.environ.get('PATH', '')}"
    known = COMPUTED.get((name, asked))
    if known is not None and all(status(file) == was for file, was in known.watched):
        return known
    real = path
    if parts is not None:
        with open(path, "rb") as file:
            script = file.read(2) == b"#!"
        if script:
            from . import programs

            # A wrapper can lead elsewhere without changing itself: it is asked again in every process.
            real = programs.behind(path) or path

    def compute() -> Found:
        from . import programs

        return programs.driver(path) if parts is None else programs.program(real, parts)

    found = COMPUTED[name, asked] = identify(name, asked if real == path else real, compute, memo_dir)
    return found


def _which(command: str) -> str:
    if os.path.dirname(command):
        candidates = [command]
    else:
        candidates = [os.path.join(place, command) for place in os.environ.get("PATH", "").split(os.pathsep)]
    for path in candidates:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    raise UncacheableError(f"there is no program {command}", "toolchain")


def forget() -> None:
    """Compute every identity of this process again: a compiler was replaced while it ran."""
    COMPUTED.clear()
    LOADED.clear()
