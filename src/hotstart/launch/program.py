"""Which program a command line starts, which Python it runs in, and what is installed there; read, never run."""

from __future__ import annotations

import os
import sys

from ..store import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Commands that start another one, which then is what matters.
_WRAPPERS = frozenset(
    (
        *("env", "nice", "nohup", "time", "timeout", "stdbuf", "setsid", "ionice", "taskset", "numactl", "chrt"),
        *("sh", "bash", "dash", "zsh", "ksh", "fish", "srun", "mpirun", "mpiexec", "xargs", "nsys", "ncu", "strace"),
        *("uv", "uvx", "poetry", "pdm", "pipenv", "hatch", "conda", "mamba", "micromamba", "pixi", "hotstart"),
    )
)

#: Options of the interpreter that take a value.
_PYTHON_VALUED = ("-W", "-X", "--check-hash-based-pycs")

_SHEBANG = 256


class Program:
    """What would run. ``interpreter`` is empty for what is not Python."""

    __slots__ = ("arguments", "code", "files", "interpreter", "name", "roots", "sites", "version")

    def __init__(self) -> None:
        #: What people call it: ``train.py``, ``-m serve``, ``vllm``.
        self.name = ""
        self.arguments: list[str] = []
        #: What was given with ``-c``: to be looked through, not to be kept.
        self.code = ""
        self.interpreter = ""
        self.version = ""
        #: Directories that distributions are installed in.
        self.sites: list[str] = []
        #: The files of the program itself, and the directories its own modules are found in.
        self.files: list[str] = []
        self.roots: list[str] = []


def find(command: list[str], environ: Mapping[str, str], directory: str) -> Program:
    """What ``command`` starts, as far as its words say. Never raises."""
    program = Program()
    words = [word for word in command if isinstance(word, str)]
    if not words:
        return program
    program.name, program.arguments = os.path.basename(words[0]), words[1:]
    wrapped = False
    for at, word in enumerate(words):
        path = which(word, environ, directory)
        if path and is_python(path):
            _python(program, path, words[at + 1 :], environ, directory)
            return program
        interpreter = _shebang(path, environ) if path else ""
        if interpreter and is_python(interpreter):
            # A console script: torchrun, vllm, pytest. A file it is given is the program then.
            program.name, program.arguments = os.path.basename(word), words[at + 1 :]
            program.files = [path]
            _installed(program, interpreter, environ, directory)
            _given_files(program, directory)
            return program
        if at == 0:
            wrapped = program.name in _WRAPPERS
            if path and not wrapped:
                program.files = [path] if _is_script(path) else []
        if not wrapped:
            break
        if word.endswith(".py") and os.path.isfile(os.path.join(directory, word)):
            break
    if wrapped and program.name not in ("env", "nice", "time", "timeout"):
        interpreter = which("python3", environ, directory) or which("python", environ, directory)
        if interpreter:
            _installed(program, interpreter, environ, directory)
        _given_files(program, directory)
    return program


def _given_files(program: Program, directory: str) -> None:
    """Scripts among the arguments."""
    for word in program.arguments:
        path = os.path.join(directory, word)
        if word.endswith((".py", ".sh")) and os.path.isfile(path):
            program.files.append(path)
            program.roots.append(os.path.dirname(path))


def _python(program: Program, interpreter: str, words: list[str], environ: Mapping[str, str], directory: str) -> None:
    """``python [options] script | -m module | -c code``."""
    _installed(program, interpreter, environ, directory)
    at = 0
    while at < len(words):
        word = words[at]
        if word in _PYTHON_VALUED:
            at += 2
        elif word in ("-m", "-c"):
            _module_or_code(program, word, words[at + 1 :], directory)
            return
        elif word.startswith("-") and word != "-":
            at += 1
        else:
            program.name, program.arguments = os.path.basename(word.rstrip("/")) or word, words[at + 1 :]
            path = os.path.join(directory, word)
            if os.path.isdir(path):
                program.roots.append(path)
            elif os.path.isfile(path):
                program.files.append(path)
                program.roots.append(os.path.dirname(path))
            return
        if word[:2] == "-m" and len(word) > 2:
            _module_or_code(program, "-m", [word[2:], *words[at:]], directory)
            return
    program.name, program.arguments = "python", words


def _module_or_code(program: Program, flag: str, words: list[str], directory: str) -> None:
    first, program.arguments = (words[0] if words else ""), words[1:]
    if flag == "-c":
        from ..keys.digest import digest_of

        # The code may be long, or hold what should not be kept: its digest says whether it is the same.
        program.code = first
        program.name = f"-c {digest_of(first.encode('utf-8', 'surrogateescape'))[:12]}"
    else:
        program.name = f"-m {first}"
        stem = os.path.join(directory, first.replace(".", "/"))
        program.files = [path for path in (f"{stem}.py", f"{stem}/__main__.py") if os.path.isfile(path)]
    program.roots.append(directory)
    _given_files(program, directory)


# -- the interpreter -----------------------------------------------------------------


def is_python(path: str) -> bool:
    """By name: ``python``, ``python3.12``, ``pypy3``; nothing is started to find out."""
    name = os.path.basename(path)
    for prefix in ("python", "pypy"):
        rest = name.removeprefix(prefix)
        if rest != name and rest.replace(".", "").rstrip("tdm").isdigit():
            return True
    return name in ("python", "pypy")


def which(name: str, environ: Mapping[str, str], directory: str = "") -> str:
    """The file that a shell would start for ``name``; empty if there is none."""
    if not name:
        return ""
    if os.path.dirname(name):
        places = [os.path.join(directory, name)]
    else:
        path = environ.get("PATH") or os.defpath
        places = [os.path.join(directory, place, name) for place in path.split(os.pathsep) if place]
    for place in places:
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    return ""


def _shebang(path: str, environ: Mapping[str, str]) -> str:
    """The interpreter that a script names in its first line."""
    words = _first_line(path).split()
    if not words or not words[0].startswith("#!"):
        return ""
    interpreter = words[0][2:] or (words[1] if len(words) > 1 else "")
    if os.path.basename(interpreter) == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return which(named[0], environ) if named else ""
    if interpreter == "/bin/sh" and len(words) == 1:
        # What pip writes where the path is too long for a shebang: '''exec' "/long/path/python" "$0" "$@"
        second = _first_line(path, 1)
        if second.startswith("'''exec'"):
            return second.split('"')[1] if '"' in second else second.split()[1]
    return interpreter


def _first_line(path: str, number: int = 0) -> str:
    try:
        with open(path, "rb") as file:
            head = file.read(_SHEBANG * 4 if number else _SHEBANG)
    except OSError:
        return ""
    lines = head.split(b"\n")
    return lines[number].decode("utf-8", "replace") if len(lines) > number else ""


def _is_script(path: str) -> bool:
    return _first_line(path).startswith("#!")


def _installed(program: Program, interpreter: str, environ: Mapping[str, str], directory: str) -> None:
    """Version and site directories of an interpreter, off its own files."""
    interpreter = _behind_shim(interpreter, environ, directory)
    program.interpreter = interpreter
    prefix = os.path.dirname(os.path.dirname(interpreter))
    settings = _settings(os.path.join(prefix, "pyvenv.cfg"))
    if not settings:
        real = os.path.realpath(interpreter)
        prefix = os.path.dirname(os.path.dirname(real))
        settings = _settings(os.path.join(prefix, "pyvenv.cfg"))
    program.version = settings.get("version") or settings.get("version_info") or ""
    program.version = ".".join(program.version.split(".")[:3])
    short = ".".join(program.version.split(".")[:2]) or _short_version(interpreter)
    prefixes = [prefix]
    if settings.get("include-system-site-packages", "").lower() == "true" and settings.get("home"):
        prefixes.append(os.path.dirname(settings["home"]))
    if not settings:
        program.version = _version_of(prefix, short) or short
        if os.path.realpath(interpreter) == os.path.realpath(sys.executable):
            program.version = sys.version.split()[0]
        if environ.get("HOME"):
            prefixes.append(os.path.join(environ["HOME"], ".local"))
    for place in (environ.get("PYTHONPATH") or "").split(os.pathsep):
        if os.path.isabs(place):
            program.sites.append(place)
    for place in prefixes:
        for lib in (f"{place}/lib/python{short}", f"{place}/lib64/python{short}", f"{place}/lib/python3"):
            program.sites += [f"{lib}/{site}" for site in ("site-packages", "dist-packages")]
    if short and not settings and prefix == "/usr":
        program.sites += [f"/usr/local/lib/python{short}/dist-packages", f"/usr/local/lib/python{short}/site-packages"]


def _behind_shim(interpreter: str, environ: Mapping[str, str], directory: str) -> str:
    """pyenv puts a script of its own on the PATH: the interpreter that it would choose."""
    place, name = os.path.split(interpreter)
    if os.path.basename(place) != "shims":
        return interpreter
    root = os.path.dirname(place)
    wanted = environ.get("PYENV_VERSION") or ""
    while directory and not wanted:
        wanted = _first_line(os.path.join(directory, ".python-version"))
        parent = os.path.dirname(directory)
        directory = parent if parent != directory else ""
    for version in (wanted or _first_line(f"{root}/version")).replace(":", " ").split():
        path = f"{root}/versions/{version}/bin/{name}"
        if os.path.isfile(path):
            return path
    return interpreter


def _settings(path: str) -> dict[str, str]:
    """``pyvenv.cfg`` as a mapping; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            pairs = (line.partition("=") for line in file)
            return {name.strip().lower(): value.strip() for name, found, value in pairs if found}
    except OSError:
        return {}


def _short_version(interpreter: str) -> str:
    """``3.12``, off the name of the interpreter or of the library directory beside it."""
    real = os.path.realpath(interpreter)
    for path in (interpreter, real):
        version = os.path.basename(path).removeprefix("python").removeprefix("pypy").rstrip("tdm")
        if version.count(".") == 1:
            return version
    lib = os.path.join(os.path.dirname(os.path.dirname(real)), "lib")
    try:
        names = sorted(name for name in files.listdir(lib) if name.startswith("python3."))
    except OSError:
        names = []
    return names[-1].removeprefix("python") if names else ""


def _version_of(prefix: str, short: str) -> str:
    """With the patch release, where the headers are installed."""
    try:
        with open(f"{prefix}/include/python{short}/patchlevel.h", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("#define PY_VERSION "):
                    return line.split('"')[1]
    except (OSError, IndexError):
        pass  # a system without headers: the minor version has to do
    return ""


def distributions(sites: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Name → (version, directory) of what is installed in these directories; the first found wins."""
    found: dict[str, tuple[str, str]] = {}
    for site in sites:
        try:
            names = files.listdir(site)
        except OSError:
            continue
        for entry in names:
            if entry.endswith(".dist-info"):
                name, _, version = entry.removesuffix(".dist-info").partition("-")
                if name and version:
                    found.setdefault(name.lower().replace("_", "-").replace(".", "-"), (version, site))
    return found
