"""What the results of a run depended on, as plain data: so that a later miss can be explained.

Frameworks that are seen only through their directory keep their keys to themselves. What
goes into those keys is known, though: versions, the interpreter, a few environment
variables, the number of threads, the device, the program's own files. ``gather`` notes
all of it, ``insight.changes`` compares two of them in words.

Nothing is imported or started to find out: distributions are read off the directories
they are installed in, the interpreter off its path, devices off the kernel's files (of
architectures only NVML knows; it is asked where there is an NVIDIA device). Bounded in
files, bytes and time, because it is part of a user's start-up; best called while the
child process is already running.

Values of environment variables are recorded only if their name is on the list below and
does not sound like a secret; of the command line what follows a secret's name is hidden.
"""

from __future__ import annotations

import os
import sys

from ..store import files
from . import program as programs
from . import sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ..compilers.contract import Framework

#: Raised when the meaning of a context changes: contexts of different versions are not compared.
VERSION = 1

#: Variables whose values may be recorded: they are in somebody's key, or change what is compiled.
_PREFIXES = (
    *("TORCH", "PYTORCH_", "INDUCTOR_", "ATEN_", "AOT_", "TRITON_", "JAX_", "XLA_", "TF_XLA_", "LIBTPU_", "CUDA_"),
    *("NVCC_", "NVRTC_", "NV_NVVM_", "NVIDIA_TF32", "CUPY_", "NUMBA_", "WARP_", "TILELANG_", "TVM_", "HELION_"),
    *("CUTE_", "CUTLASS_", "QUACK_", "FLASHINFER_", "DG_", "VLLM_", "SGLANG_", "OMP_", "MKL_", "KMP_", "GOMP_"),
    *("OPENBLAS_", "VECLIB_", "DNNL_", "ONEDNN_", "HIP_", "ROCM_", "ROCR_", "HSA_", "AMD_", "MIOPEN_", "LLVM_"),
    *("TINY_", "TI_", "QD_", "MAX_JOBS", "LOCAL_RANK", "WORLD_SIZE"),
)
_NAMES = frozenset(
    (
        *("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"),
        *("PYTHONOPTIMIZE", "PYTHONHASHSEED", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "DEBUG", "DEV", "CACHEDB"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "SOURCE_DATE_EPOCH", "CUDAHOSTCXX", "MACOSX_DEPLOYMENT_TARGET"),
    )
)

#: Words in a name that mean: look away.
_SECRET = frozenset(
    (
        *("TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASS", "PASSPHRASE", "CREDENTIAL"),
        *("CREDENTIALS", "AUTH", "APIKEY", "URL", "URI", "DSN", "COOKIE", "PROXY", "CERT", "PRIVATE", "PAT"),
    )
)
_SECRET_KEYS = frozenset(("API", "ACCESS", "ACCOUNT", "SIGNING", "ENCRYPTION", "MASTER", "SSH", "LICENSE", "AUTH"))

#: What stands for a value that is not recorded.
HIDDEN = "(hidden)"
CODE = "(code)"

_LONGEST_VALUE = 1000
_MOST_DISTRIBUTIONS = 3000


def gather(
    command: Sequence[str],
    environ: Mapping[str, str],
    frameworks: Iterable[str | Framework] = (),
    *,
    root: str = "",
    directory: str = "",
    seconds: float = 0.25,
) -> dict[str, Any]:
    """What ``command`` under ``environ`` depends on. Never raises; what cannot be found out is left out.

    ``frameworks`` are those whose install paths matter, by name or row. Variables that
    point below ``root`` (the redirected directories) are left out: hotstart set them, and
    they say where, not what. ``seconds`` bounds the reading of the program's files.
    """
    child = programs.find(list(command), environ, directory or _here())
    context: dict[str, Any] = {
        "version": VERSION,
        "program": child.name,
        "arguments": hide(child.arguments),
        "env": _variables(environ, root),
        "threads": _threads(environ),
        "cpus": _cpus(),
        "machine": _machine(),
        "user": environ.get("USER") or environ.get("LOGNAME") or "",
    }
    if not child.interpreter:
        # Nothing to be said of packages: what is not Python has none, and `true` should cost nothing.
        context["sources"] = sources.files(child.files)
        return context
    context["python"] = child.version
    found = programs.distributions(child.sites)
    context["packages"] = dict(sorted((name, version) for name, (version, _) in found.items())[:_MOST_DISTRIBUTIONS])
    context["places"] = _places(found, frameworks)
    context["cpu"] = _cpu_features()
    context["gpus"], context["driver"] = _devices()
    context["compiler"] = _compiler(environ)
    # A home inside the project: what frameworks write there is a result and no source.
    ours = (root, os.path.dirname(root)) if root else ()
    tree = sources.tree(child.files, child.roots, seconds, child.code, ours)
    context["sources"] = tree.digests
    context["beside"] = tree.beside
    if tree.left_out:
        context["sources_left_out"] = tree.left_out
    return context


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was removed under us


# -- variables and arguments --------------------------------------------------------


def _variables(environ: Mapping[str, str], root: str) -> dict[str, str]:
    found = {}
    inside = root.rstrip("/") + "/" if root else ""
    for name, value in environ.items():
        if name not in _NAMES and not name.startswith(_PREFIXES):
            continue
        if inside and value.startswith(inside):
            continue
        found[name] = HIDDEN if is_secret(name) or "://" in value else value[:_LONGEST_VALUE]
    return dict(sorted(found.items()))


def is_secret(name: str) -> bool:
    """Whether a variable or option of this name may hold a secret. Rather once too often."""
    words = name.upper().replace("-", "_").strip("_").split("_")
    if not _SECRET.isdisjoint(words):
        return True
    return "KEY" in words and (words[-1] == "KEY" or not _SECRET_KEYS.isdisjoint(words))


def hide(arguments: Sequence[str]) -> list[str]:
    """Arguments without what follows the name of a secret, the passwords in URLs, and code given with ``-c``."""
    shown: list[str] = []
    hidden = False
    for argument in arguments:
        if shown and shown[-1] == "-c":
            shown.append(CODE)
            continue
        if hidden and not argument.startswith("-"):
            shown.append(HIDDEN)
            hidden = False
            continue
        hidden = False
        name, assigned, _ = argument.partition("=")
        bare = name.lstrip("-")
        if bare and bare.replace("-", "").replace("_", "").isalnum() and is_secret(bare):
            if assigned:
                shown.append(f"{name}={HIDDEN}")
                continue
            hidden = name.startswith("-")
        scheme, found, rest = argument.partition("://")
        if found and "@" in rest:
            # A password may hold a slash or an @ that was not escaped: everything up to the last one goes.
            argument = f"{scheme}://{HIDDEN}@{rest.rpartition('@')[2]}"
        shown.append(argument[:_LONGEST_VALUE])
    return shown


# -- the machine ---------------------------------------------------------------------


def _threads(environ: Mapping[str, str]) -> int:
    """How many threads OpenMP would use: what Inductor compiles into its loops."""
    first = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) else _cpus()


def _cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def _machine() -> str:
    return os.uname().machine if hasattr(os, "uname") else sys.platform


def _cpu_features() -> dict[str, str]:
    """Model and instruction sets of the first processor, as the kernel names them."""
    found: dict[str, str] = {}
    # The first processor's paragraph: the whole file has one for each of perhaps 400.
    for line in _text("/proc/cpuinfo", 8192).partition("\n\n")[0].splitlines():
        label, _, value = line.partition(":")
        label, value = label.strip(), value.strip()
        if label in ("flags", "Features"):
            found["features"] = " ".join(sorted(value.split()))
        elif label in ("model name", "CPU part"):
            found["model"] = value
    return found


def _devices() -> tuple[list[dict[str, str]], str]:
    """GPUs in the order of the driver, and the driver's release; nothing where there are none."""
    if os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidiactl"):
        from .nvml import ask

        answer = ask()
        if answer is not None:
            return answer
        words = _text("/proc/driver/nvidia/version", 512).partition("\n")[0].split()
        release = next((word for word in words if word[:1].isdigit() and "." in word), "")
        return _named_by_kernel(), release
    return _amd(), ""


def _named_by_kernel() -> list[dict[str, str]]:
    """What a container without NVML still shows."""
    found = []
    place = "/proc/driver/nvidia/gpus"
    for name in _listed(place):
        for line in _text(f"{place}/{name}/information", 2048).splitlines():
            label, _, value = line.partition(":")
            if label.strip() == "Model":
                found.append({"name": value.strip()})
    return found


def _amd() -> list[dict[str, str]]:
    found = []
    place = "/sys/class/kfd/kfd/topology/nodes"
    for name in _listed(place):
        for line in _text(f"{place}/{name}/properties", 4096).splitlines():
            label, _, value = line.partition(" ")
            if label == "gfx_target_version" and value.strip() not in ("", "0"):
                number = int(value)
                arch = f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"
                found.append({"name": "AMD", "arch": arch})
    return found


def _listed(place: str) -> list[str]:
    try:
        return sorted(files.listdir(place))
    except OSError:
        return []


def _text(path: str, size: int) -> str:
    """The beginning of a file of the kernel's; empty where there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, size).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def _compiler(environ: Mapping[str, str]) -> str:
    """The C++ compiler that would be started, by its real path and the size and time of its file."""
    wanted = (environ.get("CXX") or "").split(" ")[0]
    for name in (wanted,) if wanted else ("g++", "c++", "clang++"):
        path = programs.which(name, environ)
        if path:
            real = os.path.realpath(path)
            try:
                info = os.stat(real)
            except OSError:
                continue
            return f"{real} {info.st_size} {info.st_mtime_ns}"
    return ""


def _places(found: Mapping[str, tuple[str, str]], frameworks: Iterable[str | Framework]) -> dict[str, str]:
    """Where the distributions of these frameworks are installed: some hold that path in their keys."""
    from ..compilers.frameworks import FRAMEWORKS

    names = {row if isinstance(row, str) else row.name for row in frameworks}
    places = {}
    for row in FRAMEWORKS:
        if row.name in names or not names:
            for distribution in row.distributions:
                if distribution in found:
                    places[distribution] = found[distribution][1]
    return places
