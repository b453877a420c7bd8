"""NVRTC's options in one canonical form.

``--gpu-architecture=sm_90``, ``-arch=sm_90`` and ``-arch sm_90`` are one option; in which
order different options come does not matter to NVRTC, in which order the same one comes
does, and ``-D`` and ``-U`` answer each other. What NVRTC 13.4 accepts and means was found
by trying it, and tests/compilers/test_options.py tries it again.

Directories and the names of headers are not part of the canonical form: what is in them
counts, not what they are called. They go to ``keys.headers.closure``, which see.

Options that write files, or read what cannot be put into a key, make a compile
uncacheable; each such option is a line in ``Options.refusals``.
"""

from __future__ import annotations

import os

from ..errors import UsageError
from ..keys.digest import encoded_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypedDict

    class Search(TypedDict):
        include_dirs: tuple[str, ...]
        defines: tuple[str, ...]
        undefines: tuple[str, ...]
        pre_includes: tuple[str, ...]
        source_dir: bool
        paths: bool


# How an option takes its value: not at all, "=value" or as the next argument, "=value" only.
_FLAG, _VALUE, _EQUALS = 0, 1, 2

#: Every option by its long name: the short one where it differs, and how it takes its value.
_OPTIONS = {
    "Ofast-compile": ("Ofc", _VALUE),
    "Wconversion": ("", _FLAG),
    "Wreorder": ("", _FLAG),
    "brief-diagnostics": ("brief-diag", _VALUE),
    "builtin-initializer-list": ("", _VALUE),
    "builtin-move-forward": ("", _VALUE),
    "create-pch": ("", _EQUALS),
    "define-macro": ("D", _VALUE),
    "device-as-default-execution-space": ("default-device", _FLAG),
    "device-c": ("dc", _FLAG),
    "device-debug": ("G", _FLAG),
    "device-float128": ("", _FLAG),
    "device-int128": ("", _FLAG),
    "device-stack-protector": ("", _VALUE),
    "device-w": ("dw", _FLAG),
    "diag-error": ("", _VALUE),
    "diag-suppress": ("", _VALUE),
    "diag-warn": ("", _VALUE),
    "diagnose-implicit-tile-var": ("", _FLAG),
    "disable-warnings": ("w", _FLAG),
    "display-error-number": ("err-no", _FLAG),
    "dlink-time-opt": ("dlto", _FLAG),
    "dopt": ("", _VALUE),
    "enable-tile": ("", _FLAG),
    "extensible-whole-program": ("ewp", _FLAG),
    "extra-device-vectorization": ("", _FLAG),
    "fassociative-math": ("", _FLAG),
    "fdevice-syntax-only": ("", _FLAG),
    "fdevice-time-trace": ("", _EQUALS),
    "ffinite-math-only": ("", _FLAG),
    "fmad": ("", _VALUE),
    "fmax-errors": ("", _VALUE),
    "fno-signed-zeros": ("", _FLAG),
    "frandom-seed": ("", _EQUALS),
    "ftz": ("", _VALUE),
    "gen-opt-lto": ("", _FLAG),
    "generate-line-info": ("lineinfo", _FLAG),
    "gpu-architecture": ("arch", _VALUE),
    "include-path": ("I", _VALUE),
    "instantiate-templates-in-pch": ("", _VALUE),
    "jump-table-density": ("jtd", _VALUE),
    "maxrregcount": ("", _VALUE),
    "minimal": ("", _FLAG),
    "modify-stack-limit": ("", _VALUE),
    "no-cache": ("", _FLAG),
    "no-display-error-number": ("no-err-no", _FLAG),
    "no-source-include": ("", _FLAG),
    "optimization-info": ("opt-info", _EQUALS),
    "optix-ir": ("", _FLAG),
    "pch": ("", _FLAG),
    "pch-dir": ("", _EQUALS),
    "pch-messages": ("", _VALUE),
    "pch-verbose": ("", _VALUE),
    "pre-include": ("include", _VALUE),
    "prec-div": ("", _VALUE),
    "prec-sqrt": ("", _VALUE),
    "ptxas-options": ("Xptxas", _VALUE),
    "relocatable-device-code": ("rdc", _VALUE),
    "restrict": ("", _FLAG),
    "simt-only": ("", _FLAG),
    "split-compile": ("", _VALUE),
    "std": ("", _EQUALS),
    "tile-as-default-execution-space": ("default-tile", _FLAG),
    "tile-only": ("", _FLAG),
    "time": ("", _EQUALS),
    "undefine-macro": ("U", _VALUE),
    "use-bundled-headers": ("use-bundled-headers", _EQUALS),
    "use-pch": ("", _EQUALS),
    "use_fast_math": ("", _FLAG),
    "utf-8": ("", _FLAG),
    "warning-as-error": ("Werror", _VALUE),
}

#: The same by every spelling.
_SPELLINGS = {
    spelling: (name, kind)
    for name, (short, kind) in _OPTIONS.items()
    for spelling in (f"--{name}", f"-{short or name}")
}

#: Options that answer each other, so that their order among themselves is kept.
_GROUPS = {
    "define-macro": "macros",
    "undefine-macro": "macros",
    "device-c": "relocatable",
    "device-w": "relocatable",
    "relocatable-device-code": "relocatable",
    "diag-error": "diagnostics",
    "diag-suppress": "diagnostics",
    "diag-warn": "diagnostics",
    "warning-as-error": "diagnostics",
    "disable-warnings": "diagnostics",
    "display-error-number": "numbers",
    "no-display-error-number": "numbers",
    "enable-tile": "tile",
    "tile-only": "tile",
    "simt-only": "tile",
}

_REFUSED = {
    "time": "--time writes how long the compile took, and a hit does not compile",
    "fdevice-time-trace": "--fdevice-time-trace writes a trace of the compile, and a hit does not compile",
    "create-pch": "--create-pch writes a precompiled header, and a hit would not",
    "use-pch": "--use-pch reads a precompiled header, whose content differs each time it is made",
    "pch": "--pch writes and reads precompiled headers on its own",
    "pch-dir": "--pch-dir is where precompiled headers are written and read",
}

#: With these the output shows where the source and its headers are.
_SHOWING_PATHS = ("generate-line-info", "device-debug", "dlink-time-opt")

#: What ptxas would read or write besides its input and output.
_PTXAS_FILES = ("-o", "--output-file", "-optf", "--options-file")

_MARKER = ".nvrtc_headers_version"

_known: dict[tuple[str | bytes, ...], Options] = {}


@encoded_once
class Options:
    """A list of NVRTC's options, read. Made by ``parse``.

    Encodes as its canonical form, which with the closure of headers
    (``closure(source, **options.search())``) is all that options can do to the
    output of a compile without refusals.
    """

    __slots__ = (
        "_encoding",
        "_searches",
        "arch",
        "canonical",
        "defines",
        "include_dirs",
        "paths",
        "pre_includes",
        "refusals",
        "source_dir",
        "undefines",
    )

    #: The last ``-arch``, or None.
    arch: str | None
    #: Name and values of each option but those that name directories and headers, and what is not known, verbatim.
    canonical: tuple[tuple[str, tuple[str, ...]], ...]
    include_dirs: tuple[str, ...]
    #: Operands of -D and -U.
    defines: tuple[str, ...]
    undefines: tuple[str, ...]
    pre_includes: tuple[str, ...]
    #: Whether headers in quotes are looked for beside the file that includes them.
    source_dir: bool
    #: Whether the output shows the paths of all files.
    paths: bool
    #: Why this compile must not be cached; empty when it may.
    refusals: tuple[str, ...]
    _searches: list[Search | None]

    def __init__(self) -> None:
        self._searches = [None, None]

    def search(self, paths: bool = False) -> Search:
        """What ``keys.headers.closure`` has to know; ``paths`` says that the output shows them anyway.

        Made once and not to be changed: asked for at every hit.
        """
        found = self._searches[paths]
        if found is None:
            found = self._searches[paths] = {
                "include_dirs": self.include_dirs,
                "defines": self.defines,
                "undefines": self.undefines,
                "pre_includes": self.pre_includes,
                "source_dir": self.source_dir,
                "paths": paths or self.paths,
            }
        return found

    __hotstart_label__ = "hotstart.Options"

    def __hotstart_key__(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return self.canonical

    def complete(self) -> tuple[object, ...]:
        """The canonical form with directories and headers as they are spelled, for those who make no closure."""
        return self.canonical, self.include_dirs, self.pre_includes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and self.complete() == other.complete()

    def __hash__(self) -> int:
        return hash(self.complete())

    def __repr__(self) -> str:
        return f"<Options {' '.join(f'--{name}={value}' for name, values in self.canonical for value in values)}>"


def parse(options: Iterable[str | bytes]) -> Options:
    """Read options as NVRTC would be given them.

    Raises UsageError for what is not text. What NVRTC would not understand is
    kept as it is, in order: it may know more than we do, and says so otherwise.
    """
    if isinstance(options, (str, bytes)):
        raise UsageError(f"options is a list of strings such as ['-O3'], not the one string {options!r}")
    try:
        given = tuple(options)
        known = _known.get(given)
    except TypeError:
        raise UsageError(f"options is a list of strings such as ['-O3'], not {options!r}") from None
    if known is None:
        known = _parse(given)
        if not any("use-bundled-headers" in os.fsdecode(option) for option in given):
            if len(_known) >= 256:
                _known.clear()
            _known[given] = known
    return known


def _parse(given: tuple[str | bytes, ...]) -> Options:
    for position, option in enumerate(given):
        if not isinstance(option, (str, bytes)) or (b"\0" if isinstance(option, bytes) else "\0") in option:  # type: ignore[operator]  # of one kind
            raise UsageError(f"options[{position}] is {option!r}; an option is a string such as '-arch=sm_90'")
    texts = [os.fsdecode(option).strip() for option in given]
    found: list[tuple[str, str]] = []
    unknown: list[str] = []
    position = 0
    while position < len(texts):
        name, value, taken = _read(texts, position)
        if taken:
            found.append((name, value))
            position += taken
        else:
            # It may take the next argument as its value, so that is kept with it, and read for itself as well.
            alone = "=" in texts[position] or not texts[position].startswith("-")
            unknown += texts[position : position + (1 if alone else 2)]
            position += 1
    return _canonical(found, unknown)


def _read(texts: list[str], position: int) -> tuple[str, str, int]:
    """The option at ``position``: its long name, its value, and how many arguments it takes (0: not known)."""
    text = texts[position]
    spelled, equals, value = text.partition("=")
    name, kind = _SPELLINGS.get(spelled, ("", _FLAG))
    if name:
        if equals:
            return (name, value, 1) if kind != _FLAG else ("", "", 0)
        if kind == _FLAG:
            return name, "", 1
        if kind == _EQUALS:
            return "", "", 0
        following = texts[position + 1] if position + 1 < len(texts) else ""
        return name, following, 2
    if text[:2] in ("-D", "-U", "-I"):
        # These three need nothing between themselves and their value, or spaces.
        return _SPELLINGS[text[:2]][0], text[2:].lstrip(" "), 1
    return "", "", 0


def _canonical(found: list[tuple[str, str]], unknown: list[str]) -> Options:
    options = Options()
    values: dict[str, list[str]] = {}
    groups: dict[str, list[tuple[str, str]]] = {}
    include_dirs: list[str] = []
    refusals: list[str] = []
    for name, value in found:
        if name == "include-path":
            include_dirs.append(value)
        elif name == "use-bundled-headers":
            include_dirs += [value, f"{value}/cccl"]
            if not os.path.isfile(os.path.join(value, _MARKER)):
                refusals.append(f"--use-bundled-headers installs headers into {value}, and a hit would not")
        elif name != "pre-include":
            if name in _REFUSED:
                refusals.append(_REFUSED[name])
            if name == "ptxas-options" and value.partition("=")[0].partition(" ")[0] in _PTXAS_FILES:
                refusals.append(f"ptxas reads or writes a file of its own: {value}")
            if name in _GROUPS:
                groups.setdefault(_GROUPS[name], []).append((name, value.strip()))
            else:
                values.setdefault(name, []).append(value)
    # The same value again says nothing new; another one does, and the last of them counts.
    canonical = [
        (name, tuple(dict.fromkeys(said)) if len(set(said)) == 1 else tuple(said)) for name, said in values.items()
    ]
    for group, members in groups.items():
        canonical.append((group, _grouped(group, members)))
    if unknown:
        canonical.append(("", tuple(unknown)))
    options.canonical = tuple(sorted(canonical))
    options.arch = values["gpu-architecture"][-1] if "gpu-architecture" in values else None
    options.include_dirs = tuple(include_dirs)
    options.defines = tuple([value for name, value in found if name == "define-macro"])
    options.undefines = tuple([value for name, value in found if name == "undefine-macro"])
    options.pre_includes = tuple([value for name, value in found if name == "pre-include"])
    options.source_dir = ("no-source-include", "") not in found
    options.paths = any((name, "") in found for name in _SHOWING_PATHS)
    options.refusals = tuple(dict.fromkeys(refusals))
    return options


def _grouped(group: str, members: list[tuple[str, str]]) -> tuple[str, ...]:
    """Options that answer each other: in their order, or sorted where they have nothing to say to each other."""
    spelled = [f"{name}={value}" for name, value in members]
    if group == "macros":
        names = [value.partition("=")[0].partition("(")[0].strip() for _, value in members]
        # -DX is -DX=1.
        spelled = [text if text.count("=") > 1 or text.startswith("u") else f"{text}=1" for text in spelled]
        return tuple(spelled if len(set(names)) < len(names) else sorted(spelled))
    if group == "relocatable" and len(members) == 1:
        alone = {"device-c=": "relocatable-device-code=true", "device-w=": "relocatable-device-code=false"}
        return (alone.get(spelled[0], spelled[0]),)
    return tuple(spelled)
