"""Keys of cuda.core's program caches, completed by what cuda.core leaves out of them.

``Program.compile(cache=…)`` makes a digest of the program and shows the cache nothing
else: not the source, so not what it includes. The compiler's patch release and every
header the source can reach have to be known when that digest is made. So while one of
our caches exists, the function that makes it, ``make_program_cache_key`` where
``Program.compile`` looks it up, is stood in for by one that returns the same bytes as
a ``ProgramKey``, which says the rest as well. To the caches of others it is the same key.

Frames were looked at instead: a compiled ``Program.compile`` has none. A cache that
takes every header in the working directory into account was tried: it misses all that
lies elsewhere, and each hit costs a scan.

Whether a later cuda.core still looks the function up there is not read off its version
but tried, once, with a program that nothing is compiled of. Where it does not, what
``Program.compile`` asks for is not cached, and says so.
"""

from __future__ import annotations

import functools

import cuda.core
from cuda.core import ObjectCode, Program, ProgramOptions, utils
from cuda.core.utils import ProgramCacheResource, _program_cache
from cuda.core.utils import make_program_cache_key as _cuda_core_key

from ..errors import UncacheableError, UsageError
from ..keys import toolchain
from ..keys.digest import digest_of, encode
from ..keys.headers import closure
from .options import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..keys.headers import Closure

#: The length of cuda.core's own keys: a SHA-256.
_THEIR_LENGTH = 32

#: Where the function is looked up, by ``Program.compile`` and by people.
_PLACES = (_program_cache, utils)


class ProgramKey(bytes):
    """cuda.core's key, and what completes it: ``fields``, or a ``refusal`` where it cannot be complete."""

    fields: dict[str, str]
    refusal: UncacheableError | None
    _headers: Closure | None

    def complete(self, code: Any, code_type: Any, options: Any, target_type: Any) -> None:
        """Note the state of compiler and headers now. What was compiled from another is not to be stored."""
        self.fields, self.refusal, self._headers = {}, None, None
        try:
            made_by, self._headers = _completion(code, code_type, options, target_type)
        except UncacheableError as error:
            self.refusal = error
        except (ValueError, TypeError) as error:  # options that no list can be made of: the compiler will say so
            self.refusal = UncacheableError(str(error), "options")
        else:
            self.fields = {"toolchain": _digest(made_by), "headers": _digest(self._headers)}

    def unchanged(self) -> bool:
        """Whether the headers still are what they were when the key was made."""
        return self._headers is None or self._headers.unchanged()


def fields_of(key: object) -> dict[str, str]:
    """A key as three digests. All keys are of one length, so that a cap can be counted in payload.

    Raises UncacheableError where headers may count that the key knows nothing of, TypeError for what is no key.
    """
    if isinstance(key, ProgramKey):
        if key.refusal is not None:
            raise key.refusal
        return {"key": digest_of(bytes(key)), **key.fields}
    raw = key_bytes(key)
    if len(raw) == _THEIR_LENGTH and not isinstance(key, str) and not stands_in():
        raise UncacheableError(
            f"cuda.core {cuda.core.__version__} makes its keys where we cannot see what a program includes; make "
            "them with hotstart.compilers.cuda_core.make_program_cache_key"
        )
    # Made by hand. Which compiler the value came from cannot be told, so all of them count.
    return {"key": digest_of(raw), "toolchain": _digest(_toolchains()), "headers": _digest(None)}


def key_bytes(key: object) -> bytes:
    """``"k"`` and ``b"k"`` are the same key; everything else is none."""
    if isinstance(key, (bytes, bytearray)):
        return bytes(key)
    if isinstance(key, str):
        return key.encode("utf-8", "surrogateescape")
    raise TypeError(f"cache keys must be bytes or str, not {type(key).__name__}")


def code_of(value: object) -> bytes:
    """The binary itself; of an ``ObjectCode`` made from a path, what the file holds now."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, ObjectCode):
        code = value.code
        if not isinstance(code, str):
            return bytes(code)
        try:
            with open(code, "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise FileNotFoundError(f"{code}, which the ObjectCode was made from, is gone: nothing to store") from None
    raise TypeError(f"cache values must be bytes-like or ObjectCode, not {type(value).__name__}")


def check_cap(size: int | None) -> int | None:
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size <= 0):
        raise UsageError(f"max_size_bytes is a positive number of bytes or None, not {size!r}")
    return size


def make_program_cache_key(
    *,
    code: str | bytes,
    code_type: str,
    options: ProgramOptions,
    target_type: str,
    name_expressions: Sequence[str | bytes] = (),
    extra_digest: bytes | None = None,
) -> bytes:
    """cuda.core's key, completed: the compiler's patch release, and every header the source can reach.

    Takes what ``cuda.core.utils.make_program_cache_key`` takes and refuses what it
    refuses, except that ``include_path``, ``pre_include`` and a ``name`` with a
    directory need no ``extra_digest``: those headers are followed here. Raises
    ValueError for options with side effects, UncacheableError (with the reason)
    where completeness cannot be had.
    """
    made_by, headers = _completion(code, code_type, options, target_type)
    completed = {"extra": extra_digest, "toolchain": made_by, "headers": headers}
    key = ProgramKey(
        _cuda_core_key(
            code=code,
            code_type=code_type,
            options=options,
            target_type=target_type,
            name_expressions=name_expressions,
            extra_digest=bytes.fromhex(_digest(completed)),
        )
    )
    key.fields = {"toolchain": _digest(made_by), "headers": _digest(headers)}
    key.refusal, key._headers = None, headers
    return key


# -- standing in --------------------------------------------------------------------


def stand_in() -> None:
    """From now on cuda.core's keys are ``ProgramKey``s. Safe to call again; ``step_back`` undoes it."""
    for place in _PLACES:
        if place.make_program_cache_key is _cuda_core_key:
            place.make_program_cache_key = _program_key


def step_back() -> None:
    """Put cuda.core's own function back, wherever ours still stands."""
    for place in _PLACES:
        if place.make_program_cache_key is _program_key:
            place.make_program_cache_key = _cuda_core_key


@functools.wraps(_cuda_core_key)
def _program_key(**given: Any) -> bytes:
    key = ProgramKey(_cuda_core_key(**given))
    key.complete(given["code"], given["code_type"], given["options"], given["target_type"])
    return key


_tried: bool | None = None


def stands_in() -> bool:
    """Whether ``Program.compile`` asks with our keys, so that any other key was made by hand."""
    global _tried
    if _program_cache.make_program_cache_key is not _program_key:
        return False
    if _tried is None:
        probe = _Probe()
        try:
            Program("", "c++", options=ProgramOptions(arch="sm_90")).compile("cubin", cache=probe)
        except Exception:
            return False  # there is no NVRTC here; it may be found another time
        _tried = probe.asked_with is ProgramKey
    return _tried


class _Probe(ProgramCacheResource):  # type: ignore[misc]  # cuda.core has no types
    """A cache that has everything, to see what it is asked with."""

    asked_with: type | None = None

    def __getitem__(self, key: bytes | str) -> bytes:
        self.asked_with = type(key)
        return b"nothing is loaded before a kernel is asked for"

    def __setitem__(self, key: bytes | str, value: object) -> None:
        raise NotImplementedError

    def __delitem__(self, key: bytes | str) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        return 0

    def clear(self) -> None:
        raise NotImplementedError


# -- what completes a key -----------------------------------------------------------


def _completion(code: Any, code_type: Any, options: Any, target_type: Any) -> tuple[object, Closure | None]:
    """The compiler and the headers of a program. Raises UncacheableError, ValueError."""
    kind = code_type.lower() if isinstance(code_type, str) else code_type
    if kind == "c++" and isinstance(code, str):
        return toolchain.nvrtc(), _closure(code, options, target_type)
    if kind == "nvvm":
        return toolchain.nvvm(), None
    # nvJitLink where it can be had; else the driver, whose version is in cuda.core's own key.
    return (_or_none(toolchain.nvjitlink) if kind == "ptx" else None), None


def _closure(code: str, options: ProgramOptions, target_type: str) -> Closure:
    """The headers of a C++ program, from the very options NVRTC will be given."""
    given = [option.decode() for option in options.as_bytes("nvrtc", target_type)]
    parsed = parse(given)
    outside = [line for line in parsed.refusals if "pch" in line.lower()]
    if outside:
        raise ValueError(f"no key can be made for options that read precompiled headers: {'; '.join(outside)}")
    name = options.name if isinstance(options.name, str) else "default_program"
    return closure(code, name=name, **parsed.search())


def _toolchains() -> list[object]:
    return [_or_none(find) for find in (toolchain.nvrtc, toolchain.nvjitlink, toolchain.nvvm)]


def _or_none(find: Callable[[], object]) -> object:
    try:
        return find()
    except UncacheableError:
        return None  # not installed, so it made nothing


def _digest(value: object) -> str:
    return digest_of(encode(value))
