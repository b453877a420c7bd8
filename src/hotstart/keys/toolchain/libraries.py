"""Where the libraries of a CUDA toolkit are, found without loading them.

The search is the one ``cuda.pathfinder`` makes for cuda-bindings and cuda.core,
so that a hit in a fresh process knows its compiler and need not import or load
it: already in this process, NVIDIA's wheels, conda, the system's loader, then
``CUDA_PATH`` or ``CUDA_HOME``. It is a prediction all the same: the system loader
has corners (hardware-specific subdirectories, an executable's RPATH) that are
not repeated here, so whoever loads a library compares with what was predicted,
see ``Toolchain.confirm``.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Library:
    """How one library is called and where the wheels and a toolkit keep it, most preferred first."""

    __slots__ = ("anchors", "name", "sonames", "wheels")

    def __init__(self, name: str, sonames: tuple[str, ...], wheels: tuple[str, ...], anchors: tuple[str, ...]) -> None:
        self.name = name
        self.sonames = sonames
        self.wheels = wheels
        self.anchors = anchors

    @property
    def stem(self) -> str:
        """How every file of this library begins: ``libnvrtc.so``."""
        return self.sonames[0].partition(".so")[0] + ".so"


NVRTC = Library(
    "nvrtc",
    ("libnvrtc.so.13", "libnvrtc.so.12"),
    ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"),
    ("lib64", "lib"),
)
NVJITLINK = Library(
    "nvJitLink",
    ("libnvJitLink.so.13", "libnvJitLink.so.12"),
    ("nvidia/cu13/lib", "nvidia/nvjitlink/lib"),
    ("lib64", "lib"),
)
NVVM = Library(
    "nvvm",
    ("libnvvm.so.4", "libnvvm.so"),
    ("nvidia/cu13/lib", "nvidia/cuda_nvcc/nvvm/lib64"),
    ("nvvm/lib64",),
)


#: Who can have brought a CUDA library into this process: asking the kernel costs 0.1 ms, so
#: only when one of them was imported. Somebody else's extension shows when it is loaded.
_LOADERS = frozenset({"_ctypes", "cuda", "torch", "cupy", "jaxlib", "tensorflow", "tensorrt", "onnxruntime"})


def find(library: Library) -> str | None:
    """The file that loading ``library`` in this process would give, or None."""
    if not _LOADERS.isdisjoint(sys.modules):
        loaded = mapped(library.stem)
        for soname in library.sonames:
            for path in loaded:
                # Whoever loaded one first decided for everybody after.
                if os.path.basename(path).startswith(soname):
                    return path
    if sys.prefix != sys.base_prefix:
        # In a virtual environment its own packages come first; asking site would cost more than all the rest.
        first = f"{sys.prefix}/{sys.platlibdir}/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        for soname in library.sonames:
            path = f"{first}/{library.wheels[0]}/{soname}"
            if os.path.isfile(path):
                return path
    return next(_candidates(library), None)


def _candidates(library: Library) -> Iterator[str]:
    sites = _site_packages()
    for relative in library.wheels:
        for site in sites:
            yield from _in_directory(f"{site}/{relative}", library)
    yield from _under(os.environ.get("CONDA_PREFIX"), library)
    yield from system(library.sonames)
    yield from _under(os.environ.get("CUDA_PATH") or os.environ.get("CUDA_HOME"), library)


def _under(root: str | None, library: Library) -> Iterator[str]:
    if root:
        for anchor in library.anchors:
            yield from _in_directory(f"{root}/{anchor}", library)


def _in_directory(directory: str, library: Library) -> Iterator[str]:
    for soname in library.sonames:
        path = f"{directory}/{soname}"
        if os.path.isfile(path):
            yield path


def system(sonames: tuple[str, ...]) -> Iterator[str]:
    """What ``dlopen(soname)`` finds: LD_LIBRARY_PATH, the loader's cache, the default directories."""
    for soname in sonames:
        for directory in os.environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":"):
            if directory and os.path.isfile(os.path.join(directory, soname)):
                yield os.path.join(directory, soname)
        cached = _loader_cache(soname)
        if cached is not None and os.path.isfile(cached):
            yield cached
        for directory in ("/lib64", "/usr/lib64", "/lib", "/usr/lib"):
            if os.path.isfile(os.path.join(directory, soname)):
                yield os.path.join(directory, soname)


def _loader_cache(soname: str, cache: str = "/etc/ld.so.cache") -> str | None:
    """The path ``ld.so.cache`` (glibc's format 1.1) has for a library, or None."""
    from struct import Struct

    try:
        with open(cache, "rb") as file:
            data = file.read()
    except OSError:
        # No cache (musl, macOS): the loader has none either.
        return None
    start = data.find(b"glibc-ld.so.cache1.1")
    wanted = soname.encode() + b"\0"
    if start < 0 or wanted not in data:
        return None
    count = int.from_bytes(data[start + 20 : start + 24], sys.byteorder)
    entry = Struct("=iIIIQ")
    for index in range(count):
        _flags, key, value, _version, _capabilities = entry.unpack_from(data, start + 48 + index * entry.size)
        if data.startswith(wanted, start + key):
            return os.fsdecode(data[start + value : data.index(b"\0", start + value)])
    return None


def _site_packages() -> list[str]:
    """The directories of installed packages in the order in which pathfinder looks through them."""
    site = sys.modules.get("site")
    if site is None:
        import site  # python -S: not imported at start-up
    assert site is not None
    directories = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        user = site.getusersitepackages()
        if user:
            # The user's packages come before the system's and after a virtual environment's own.
            directories.insert(1 if sys.prefix != sys.base_prefix else 0, user)
    return directories


def mapped(stem: str) -> dict[str, int]:
    """The files beginning with ``stem`` that are loaded in this process, each with its inode.

    Empty where the system does not say (no ``/proc``). A file that was replaced
    since it was loaded is listed under the name it had, with the inode it had.
    """
    found: dict[str, int] = {}
    maps = _maps()
    wanted = b"/" + stem.encode()
    at = maps.find(wanted)
    while at >= 0:
        start = maps.rfind(b"\n", 0, at) + 1
        end = maps.find(b"\n", at)
        fields = maps[start : end if end >= 0 else len(maps)].split(None, 5)
        if len(fields) == 6 and b"/" not in fields[5][fields[5].rfind(wanted) + 1 :]:
            found.setdefault(os.fsdecode(fields[5].removesuffix(b" (deleted)")), int(fields[4]))
        if end < 0:
            break
        at = maps.find(wanted, end)
    return found


def _maps() -> bytes:
    try:
        handle = os.open("/proc/self/maps", os.O_RDONLY)
    except OSError:
        # Not Linux: nothing can be said about what is loaded.
        return b""
    try:
        pieces = []
        while piece := os.read(handle, 1 << 13):  # the kernel gives a page at a time
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(handle)
