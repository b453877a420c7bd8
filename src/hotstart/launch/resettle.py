"""torch at another install path: kernels built by the same torch elsewhere, under the names it looks for here.

Inductor names a C++ kernel by its source and the compiler's whole command line, which holds the
path of site-packages: torch of the same release at another path finds the graph and builds every
kernel again. The library itself does not depend on that path. So, when such kernels are restored
and the program's torch lies elsewhere, that torch is asked for its command lines. One which, with
the old path in place of the new, gives exactly the name that a kernel has is the one the kernel
was built with, and with the new path it gives the name under which the kernel is looked for.

Only between installations whose headers, libraries and Inductor are the same by their RECORD. What
matches nothing is left as it is and built again: another release that names kernels differently
makes this useless, never wrong.
"""

from __future__ import annotations

import os

from . import child, places, program, state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .session import Session

#: Asking imports Inductor, which takes seconds; longer than this it is not worth it.
_LONGEST = 60.0

#: What the machine code of a kernel depends on, of all that torch installs.
_MATTERS = ("torch/include/", "torch/lib/", "torch/_inductor/", "torch/version.py", "torch/utils/cpp_extension.py")

#: The names of kernels are made and compared by torch's own functions.
_ASK = r"""
import json, sys
asked = json.load(sys.stdin)
from torch._inductor import codecache
from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
from torch._inductor.cpu_vec_isa import invalid_vec_isa, pick_vec_isa

lines = set()
caches = [getattr(codecache, name, None) for name in
          ("CppCodeCache", "CppPythonBindingsCodeCache", "CppWrapperCodeCache")]
for cache in filter(None, caches):
    for isa in (pick_vec_isa(), invalid_vec_isa):
        for quick in (False, True):
            for device in asked["devices"]:
                try:
                    options = CppTorchDeviceOptions(vec_isa=isa, device_type=device, extra_flags=(),
                        use_relative_path=False, compile_only=False, min_optimize=quick,
                        **cache.cpp_compile_command_flags)
                    lines.add(CppBuilder(name="o", sources="i", BuildOption=options).get_command_line())
                except Exception:
                    continue
found = {}
for path, name in asked["kernels"].items():
    with open(path) as file:
        source = file.read().strip()
    for line in lines:
        for new, old in asked["moves"]:
            for before in ("None ", " ", ""):
                if new in line and codecache.get_hash(source, before + line.replace(new, old)) == name:
                    found[name] = codecache.get_hash(source, before + line)
print(json.dumps(found))
"""


class Torch:
    """Where torch is installed and what it is made of; ``interpreter`` would import it."""

    __slots__ = ("identity", "interpreter", "site")

    def __init__(self, site: str, identity: str, interpreter: str = "") -> None:
        self.site = site
        self.identity = identity
        self.interpreter = interpreter


def of_program(session: Session) -> Torch | None:
    """The torch that this run's command would import; None if it is no Python program or has none."""
    if not session.command:
        return None
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    started = program.find(session.command, session.environ, here)
    found = program.distributions(started.sites).get("torch") if started.interpreter else None
    if found is None:
        return None
    version, site = found
    identity = _identity(site, version)
    return Torch(site, identity, started.interpreter) if identity else None


def _identity(site: str, version: str) -> str:
    """A digest of what RECORD promises of the files that matter; "" where there is none."""
    from blake3 import blake3

    try:
        with open(f"{site}/torch-{version}.dist-info/RECORD", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    wanted = tuple(text.encode() for text in _MATTERS)
    kept = sorted(line for line in lines if line.startswith(wanted) and b".pyc," not in line)
    return blake3(b"\n".join([version.encode(), *kept])).hexdigest() if kept else ""


def resettle(session: Session, built: list[tuple[Torch, list[str]]]) -> list[str]:
    """Give kernels, restored at these paths under the root and built by these torches, the names that the program's
    torch looks for; the paths of the sources under those names. Never raises for what torch or the disk does."""
    here = of_program(session)
    done: list[str] = []
    if here is None:
        return done
    for torch, paths in built:
        if torch.identity == here.identity and torch.site != here.site and paths:
            done += _rename(session, here, torch, paths)
    return done


def _rename(session: Session, here: Torch, there: Torch, paths: list[str]) -> list[str]:
    kernels = {f"{session.root}/{path}": os.path.basename(path).partition(".")[0] for path in paths}
    asked: dict[str, object] = {
        "kernels": kernels,
        # The packages alone are elsewhere, or the whole environment with Python's headers.
        "moves": [[here.site, there.site], [_prefix(here.site), _prefix(there.site)]],
        "devices": ["cpu", "cuda"] if os.path.exists("/dev/nvidiactl") else ["cpu"],
    }
    names = _answer(session, here, asked)
    done = []
    for path, old in kernels.items():
        new = names.get(old)
        if new is None or not new.isalnum():
            continue
        directory = f"{os.path.dirname(os.path.dirname(path))}/{new[1:3]}"
        if _copy(session, path, f"{directory}/{new}.main"):
            done.append(f"{directory}/{new}.main.cpp".removeprefix(f"{session.root}/"))
    return done


def _answer(session: Session, here: Torch, asked: dict[str, object]) -> dict[str, str]:
    import json
    import subprocess

    try:
        done = subprocess.run(
            [here.interpreter, "-c", _ASK],
            input=json.dumps(asked),
            env=session.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=_LONGEST,
            check=True,
            preexec_fn=child.unblock,  # Ctrl-C is to end it; no thread of ours is alive here
        )
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        session.troubles.append(f"torch at another install path: {type(error).__name__}")
        return {}
    return {str(old): str(new) for old, new in answer.items()} if isinstance(answer, dict) else {}


def _copy(session: Session, source: str, target: str) -> bool:
    """The kernel's source and library under another name. The library last: it is the one that counts."""
    from .parcel import read_file

    base = source.removesuffix(".cpp")
    try:
        contents = [(suffix, *read_file(base + suffix)) for suffix in (".cpp", ".so")]
    except OSError:
        return False
    via = f"{state.directory(session.home)}/staging"
    for suffix, data, seen in contents:
        if not places.replace(target + suffix, data, executable=bool(seen.st_mode & 0o100), via=via):
            return False
    return True


def _prefix(site: str) -> str:
    """The environment that a site-packages directory belongs to."""
    return site.rpartition("/lib/")[0] or site
