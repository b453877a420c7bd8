"""Tells torn files from whole ones: the functions that rows of the table name in their ``checks``."""

from __future__ import annotations

from .units import pattern_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .contract import Framework

_ZSTD = b"\x28\xb5\x2f\xfd"


def is_sound(framework: Framework, path: str, data: bytes) -> bool:
    """Whether ``data``, the file at ``path``, is whole, as far as can be told: True where no check is for it."""
    for check in framework.checks:
        if pattern_of(check.pattern).fullmatch(path) is not None and not FUNCTIONS[check.function](data):
            return False
    return True


def compressed(data: bytes) -> bool:
    """One whole zstd frame or zlib stream, with nothing behind it: what JAX writes, by what it finds installed."""
    if data.startswith(_ZSTD):
        zstd = _zstd()
        unpacker = zstd.ZstdDecompressor()
        failure: tuple[type[Exception], ...] = (zstd.ZstdError, EOFError)
    else:
        import zlib

        unpacker = zlib.decompressobj()
        failure = (zlib.error,)
    try:
        unpacker.decompress(data)
    except failure:
        return False
    return bool(unpacker.eof) and not unpacker.unused_data


def _zstd() -> Any:
    """The zstd module: in the standard library from 3.14 on, a backport before."""
    try:
        from compression import zstd
    except ImportError:
        from backports import zstd
    return zstd


FUNCTIONS: dict[str, Callable[[bytes], bool]] = {"compressed": compressed}
