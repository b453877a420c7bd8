"""The border: objects that an installed distribution defines, known by name instead of by content.

An object passes when its ``__module__`` and ``__qualname__`` lead back to the
object itself, the module belongs to a distribution, and its code comes from a file
of one. A function put in the place of a library's own (a monkeypatch) fails one of
these and is fingerprinted by its content.

What stands behind the border is not looked at: state that a library's function
reads on its own account (torch's default dtype, NumPy's error mode) is for the key
to carry. The standard library's doors to the outside world are refused instead: a
fingerprint that leaves out the file, the clock or the code behind them would be
the same for different results.
"""

from __future__ import annotations

import os
import sys
from types import FunctionType, ModuleType

from ...errors import UncacheableError
from ..digest import digest_of, encode_str
from . import distributions
from .bytecode import facts_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CODE = "runs or reaches code that cannot be seen from here"
_FILES = "reads files, whose content no fingerprint of code can hold; put what it reads into the key"
_CLOCK = "reads the clock"
_CHANCE = "draws random numbers"
_WORLD = "asks the machine it runs on, so its result differs between machines"

#: What is refused of the standard library, by the module that defines it.
_DOORS: dict[str, tuple[str, str]] = {
    "builtins": (_CODE, "eval exec __import__ input breakpoint"),
    "importlib": (_CODE, "import_module reload __import__"),
    "runpy": (_CODE, "run_module run_path"),
    "sys": (_CODE, "_getframe _current_frames _getframemodulename"),
    "inspect": (_CODE, "currentframe stack trace"),
    "gc": (_CODE, "get_objects get_referrers get_referents"),
    "io": (_FILES, "open open_code FileIO"),
    "_io": (_FILES, "open open_code FileIO"),
    "posix": (_FILES, "open listdir scandir stat lstat access readlink getcwd getcwdb"),
    "os": (_FILES, "walk fwalk fdopen"),
    "genericpath": (_FILES, "exists lexists isfile isdir getsize getmtime getctime"),
    "posixpath": (_FILES, "exists lexists isfile isdir abspath realpath expanduser expandvars"),
    "pathlib": (_FILES, "Path PosixPath"),
    "pathlib._local": (_FILES, "Path PosixPath"),
    "glob": (_FILES, "glob iglob"),
    "shutil": (_FILES, "which disk_usage"),
    "tempfile": (_FILES, "mkstemp mkdtemp NamedTemporaryFile TemporaryDirectory gettempdir"),
    "time": (
        _CLOCK,
        "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns "
        "thread_time thread_time_ns localtime gmtime ctime asctime strftime",
    ),
    "secrets": (_CHANCE, "choice randbelow randbits token_bytes token_hex token_urlsafe"),
    "uuid": (_CHANCE, "uuid1 uuid4"),
    "platform": (_WORLD, "node machine processor platform uname release version system"),
    "socket": (_WORLD, "socket create_connection gethostname getaddrinfo"),
    "urllib.request": (_WORLD, "urlopen urlretrieve"),
    "subprocess": (_WORLD, "Popen run call check_call check_output getoutput getstatusoutput"),
}
_DOORS_BY_MODULE = {module: (reason, frozenset(names.split())) for module, (reason, names) in _DOORS.items()}
_MACHINE = frozenset(("urandom", "system", "popen", "cpu_count", "process_cpu_count", "sched_getaffinity", "uname"))

#: The flag of a class that was made at run time; others are static data of the interpreter or an extension.
_HEAP_TYPE = 1 << 9

#: Wrappers around wrappers that are looked through.
_LAYERS = 8

_KNOWN: dict[int, tuple[object, object, bytes, str]] = {}
_KNOWN_COUNT = 16384
_generation = -1


def token(value: Any, code: object = None) -> bytes | None:
    """The name of a function, class or built-in of an installed distribution; None if it is none.

    Raises UncacheableError for what opens a door to the outside world. ``code`` is
    the function's code object: it can be replaced, and then what was known is void.
    """
    global _generation
    if _generation != distributions.generation or len(_KNOWN) >= _KNOWN_COUNT:
        _KNOWN.clear()
        _generation = distributions.generation
    known = _KNOWN.get(id(value))
    if known is None or known[0] is not value or known[1] is not code:
        found = _identify(value)
        if found is None:
            return None
        identity, module, name = found
        reason = _refusal(module, name) if identity == distributions.PYTHON else ""
        known = _KNOWN[id(value)] = (value, code, named(identity, module, name + _made_as(value)), reason)
    if known[3]:
        raise UncacheableError(known[3])
    return known[2]


def named(identity: str, module: str, name: str) -> bytes:
    return b"@" + encode_str(identity) + encode_str(f"{module}:{name}")


def _identify(value: Any) -> tuple[str, str, str] | None:
    """Distribution, module and name of what is certainly that distribution's own."""
    if type(value) is FunctionType and distributions.owner(value.__code__.co_filename) is None:
        return None
    name = getattr(value, "__module__", None)
    if not isinstance(name, str):
        # A method table's functions know the module only through what they are bound to.
        home = getattr(value, "__self__", None)
        if not isinstance(home, ModuleType):
            return None
        name = home.__name__
    module = sys.modules.get(name)
    if module is None:
        return None
    identity = distributions.module_owner(module)
    if identity is None:
        return None
    for attribute in ("__qualname__", "__name__"):
        path = getattr(value, attribute, None)
        if isinstance(path, str) and leads_to(module, path, value):
            return identity, name, path
    if isinstance(value, type) and not value.__flags__ & _HEAP_TYPE:
        return identity, name, value.__qualname__  # many static types are reachable under no name
    return None


def home(function: FunctionType) -> str | None:
    """The distribution whose file the code is from and whose module it sees; None for the user's own code."""
    found = distributions.owner(function.__code__.co_filename)
    if found is not None:
        module = sys.modules.get(function.__globals__.get("__name__", ""))
        if module is None or vars(module) is not function.__globals__:
            return None
    return found


def _made_as(value: Any) -> str:
    """What else tells the original from a wrapper that has taken its name, as ``functools.wraps`` lets it.

    ``F.gelu = torch.no_grad()(F.gelu)`` leads back to itself under gelu's name and in
    torch's code. The names of the code under each layer give it away.
    """
    if isinstance(value, type):
        return ""
    layers: list[str] = []
    inner = value
    while type(inner) is FunctionType and len(layers) < _LAYERS:
        layers.append(inner.__code__.co_qualname)
        inner = inner.__dict__.get("__wrapped__")
    if inner is not None:
        layers.append(type(inner).__qualname__)
    return "" if layers == [getattr(value, "__qualname__", None)] else " ".join(["", *layers])


def leads_to(module: ModuleType, path: str, value: object) -> bool:
    """Whether ``module`` holds ``value`` at ``path``. Looks into dictionaries only: nothing runs."""
    found: Any = module
    for name in path.split("."):
        try:
            found = vars(found)[name]
        except (TypeError, KeyError):
            return False
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if isinstance(found, property):
        return any(value is accessor for accessor in (found.fget, found.fset, found.fdel))
    return found is value


def _refusal(module: str, name: str) -> str:
    if module in ("os", "posix", "nt") and name in _MACHINE:
        return _WORLD
    reason, names = _DOORS_BY_MODULE.get("posix" if module == "nt" else module, ("", frozenset()))
    return reason if name in names else ""


def foreign_members(cls: type) -> list[tuple[str, FunctionType | str]]:
    """What may have been put into an installed class: functions of others, and library functions of other names.

    Generated methods (dataclasses, attrs) come from no file; they belong to the class
    when their globals are its module's, and are told by their code. A method that was not defined under its name
    (``__radd__ = __add__``, a wrapper) is told by the name it was defined under.
    """
    found: list[tuple[str, FunctionType | str]] = []
    module = sys.modules.get(cls.__module__)
    own = None if module is None else vars(module)
    prefix = cls.__qualname__ + "."
    for name, item in list(vars(cls).items()):
        kind = type(item)
        if kind is staticmethod or kind is classmethod:
            item = item.__func__
        elif kind is property:
            item = item.fget
        if type(item) is not FunctionType:
            continue
        code = item.__code__
        if distributions.owner(code.co_filename) is None:
            generated = code.co_filename[:1] == "<" and item.__globals__ is own
            found.append((name, facts_of(code).digest.hex() if generated else item))
        elif code.co_qualname != prefix + name:
            found.append((name, f"{item.__module__}:{item.__qualname__}{_made_as(item)}"))
    # Libraries fill classes in the order of a set, too (sympy does).
    found.sort(key=lambda member: member[0])
    return found


def native_token(value: Any) -> bytes | None:
    """A function or class of the user's own compiled module: its file's digest and its name; None if it is none."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None and isinstance(getattr(value, "__self__", None), ModuleType):
        module = value.__self__
    filename = getattr(module, "__file__", None)
    if module is None or not isinstance(filename, str) or not filename.endswith((".so", ".pyd")):
        return None
    for attribute in ("__qualname__", "__name__"):
        path = getattr(value, attribute, None)
        if isinstance(path, str) and leads_to(module, path, value):
            return b"X" + encode_str(_file_digest(filename)) + encode_str(path)
    return None


_files: dict[str, tuple[tuple[int, int, int], str]] = {}


def _file_digest(filename: str) -> str:
    try:
        status = os.stat(filename)
        known = _files.get(filename)
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        if known is None or known[0] != version:
            with open(filename, "rb") as file:
                known = _files[filename] = (version, digest_of(file.read()))
    except OSError as error:
        raise UncacheableError(f"its compiled module cannot be read ({error.strerror})") from None
    return known[1]
