"""What the tests of header closures share: a tree to search, the closure of a source, and what NVRTC makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hotstart.compilers import options
from hotstart.keys import headers, memo

SEARCH = ("-I../i1", "-I../i2")


def compiled(
    source: str, given_options: Sequence[str] = (), name: str = "k.cu", memory: Mapping[str, str] | None = None
) -> bytes | None:
    """The PTX that NVRTC makes now, in this working directory; None where it does not compile."""
    from cuda.bindings import nvrtc

    items = list((memory or {}).items())
    texts, names = [text.encode() for _, text in items], [label.encode() for label, _ in items]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), len(items), texts or None, names or None)
    flags = [b"-arch=compute_90", b"-default-device", b"-w", *[option.encode() for option in given_options]]
    try:
        if int(nvrtc.nvrtcCompileProgram(program, len(flags), flags)[0]) != 0:
            return None
        _, size = nvrtc.nvrtcGetPTXSize(program)
        ptx = bytes(size)
        nvrtc.nvrtcGetPTX(program, ptx)
        return ptx
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def closure_of(
    source: str,
    given_options: Sequence[str] = (),
    name: str = "k.cu",
    memory: Mapping[str, str] | None = None,
    memo_dir: str = "",
) -> headers.Closure:
    search = options.parse(given_options).search()
    return headers.closure(source, name=name, headers=memory, memo_dir=memo_dir, **search)


def value(text: str) -> str:
    """A header that shows in the PTX that it was read."""
    return f'extern "C" __device__ int v_{text} = 1;\n'


def lay(root: Path, files: Mapping[str, str | None]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.unlink()
        else:
            path.write_text(text)


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all files had been written long ago."""
    monkeypatch.setattr(memo, "SETTLING_NS", -1)
