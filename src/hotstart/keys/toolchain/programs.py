"""The compilers that are programs or packages: which files they consist of.

Called only when no memo knows them (``keys.toolchain.identity``), so imports are free here.
"""

from __future__ import annotations

import os
import re
import subprocess

from ...errors import UncacheableError
from ..digest import digest_of
from .identity import digest_files, status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .identity import Found, Watched

#: What a C++ compiler's driver starts: the compiler proper, the assembler, the linker.
_DRIVEN = ("cc1plus", "as", "collect2", "ld")

_PATIENCE = 60.0


def behind(script: str) -> str | None:
    """The program that a wrapper script starts, where it says so: nvcc does."""
    where = re.search(r"^#\$ _HERE_=(.*)$", _output(script, "--dryrun", "-E", "-x", "cu", os.devnull), re.MULTILINE)
    real = os.path.join(where[1], os.path.basename(script)) if where else ""
    return real if os.path.isfile(real) else None


def program(path: str, parts: tuple[str, ...]) -> Found:
    """A tool of the CUDA toolkit with the files it uses, given relative to its directory."""
    with open(path, "rb") as file:
        script = file.read(2) == b"#!"
    text = _output(path, "--version")
    release = re.search(r"release [\d.]+, V([\d.]+)", text)
    version = release[1] if release else ""
    if script:
        # Only what it prints is known of what it starts, and that can change any time: nothing to watch.
        return version, (digest_of(text.encode()),), ()
    real = os.path.realpath(path)
    files = [real, *[os.path.join(os.path.dirname(real), part) for part in parts]]
    digests, watched = digest_files([file for file in files if os.path.isfile(file)])
    return version, digests, watched


def driver(path: str) -> Found:
    """A C++ compiler: its driver and what that starts, as it says itself."""
    files = [path]
    for name in _DRIVEN:
        answer = _output(path, f"-print-prog-name={name}").strip()
        # An unknown program is answered by its own name, to be looked for on the PATH.
        places = [""] if os.path.dirname(answer) else os.environ.get("PATH", "").split(os.pathsep)
        found = [place for place in places if answer and os.path.isfile(os.path.join(place, answer))]
        if found:
            files.append(os.path.join(found[0], answer))
    digests, watched = digest_files(files)
    lines = _output(path, "--version").splitlines() or [""]
    # A clang is a small driver over shared libraries; its version carries the distribution's revision.
    return f"{lines[0]} {_output(path, '-dumpmachine').strip()}", digests, watched


def package(path: str) -> Found:
    """A Python package that compiles: through its distribution's record, or by content where there is none."""
    site, name = os.path.split(path)
    record = _record_of(site, name)
    return _recorded(path, record) if record else _tree(path)


def _record_of(site: str, name: str) -> str | None:
    """The RECORD of an installed distribution; None for an editable install or a source tree."""
    with os.scandir(site) as entries:
        names = [entry.name for entry in entries]
    for entry in names:
        if re.fullmatch(rf"{name}-[^-]*\.dist-info", entry):
            record = os.path.join(site, entry, "RECORD")
            try:
                with open(record, encoding="utf-8") as file:
                    if any(line.startswith(f"{name}/__init__.py,sha256=") for line in file):
                        return record
            except OSError:
                # Installed by something that keeps no record: the files themselves are read.
                continue
    return None


def _recorded(path: str, record: str) -> Found:
    """A distribution through its RECORD: the digests its wheel gave to the files of the package.

    Its libraries are held against it by size, so that one replaced by hand in an
    installed distribution is not taken for what the wheel brought.
    """
    site, name = os.path.split(path)
    known = status(record)
    with open(record, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.startswith(f"{name}/") and ",sha256=" in line]
    watched: Watched = ((record, known),) if known else ()
    for line in lines:
        entry, _digest, size = line.rsplit(",", 2)
        if entry.endswith(".so"):
            library = os.path.join(site, entry)
            now = status(library)
            if now is None or str(now[1]) != size:
                return _tree(path)
            watched += ((library, now),)
    version = os.path.basename(os.path.dirname(record)).removesuffix(".dist-info").partition("-")[2]
    return version, (digest_of("\n".join(sorted(lines)).encode()),), watched


def _tree(path: str) -> Found:
    """A package without a record that holds: every file in it, by content.

    Nothing is watched, because a file added to it would not be: it is read again in every process.
    """
    files = []
    for directory, names, entries in os.walk(path):
        names[:] = sorted(name for name in names if name != "__pycache__")
        files += [os.path.join(directory, entry) for entry in sorted(entries) if not entry.endswith(".pyc")]
    digests, _ = digest_files(files)
    listing = [f"{os.path.relpath(file, path)} {digest}" for file, digest in zip(files, digests, strict=True)]
    return "source", (digest_of("\n".join(listing).encode()),), ()


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_PATIENCE, check=False, stdin=subprocess.DEVNULL, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UncacheableError(f"{command[0]} does not say what it is: {error}", "toolchain") from None
    return done.stdout + done.stderr
