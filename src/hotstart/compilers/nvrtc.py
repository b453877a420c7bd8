"""NVRTC: CUDA C++ to cubin, PTX or LTO-IR, compiled once.

    kernel = nvrtc.compile(source, arch="sm_90", options=["-O3"], name_expressions=["scale<float>"])
    kernel.cubin, kernel.lowered_names["scale<float>"], kernel.from_cache

The key holds the source, the options in canonical form, every header the source
can reach (and where earlier candidates were absent), the headers given in memory,
the name expressions, and NVRTC down to its bytes. What cannot be keyed completely
is compiled and not cached, and the reason is in ``kernel.uncacheable``.

A hit does not load NVRTC, nor import its bindings.
"""

from __future__ import annotations

from .. import __version__
from ..drafting import Compiled
from ..errors import CompileError, UncacheableError, UsageError
from ..keys import toolchain
from ..keys.digest import digest_of, encode
from ..keys.headers import closure
from ..keys.key import Key
from ..log import say
from ..opening import shared
from . import options as _options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ..cache import Cache
    from ..keys.headers import Closure
    from ..keys.toolchain.identity import Toolchain
    from ..store.entry import Entry

KIND = "nvrtc"
_FAILED = "nvrtc failure"
_BY_HAND = "nvrtc kernel"

_TARGETS = ("cubin", "ptx", "ltoir")


class CachedKernel:
    """What NVRTC made of one source. Targets that were not asked for are None."""

    __slots__ = ("_log", "_lowered_names", "_meta", "cost", "cubin", "from_cache", "ltoir", "ptx", "uncacheable")

    def __init__(
        self,
        ptx: bytes | str | None = None,
        cubin: bytes | None = None,
        ltoir: bytes | None = None,
        *,
        lowered_names: Mapping[str, str] | None = None,
        log: str = "",
        cost: float = 0.0,
        from_cache: bool = False,
        uncacheable: str = "",
    ) -> None:
        self.ptx = ptx.encode() if isinstance(ptx, str) else ptx
        self.cubin = cubin
        self.ltoir = ltoir
        #: Seconds the compile took, whenever that was.
        self.cost = cost
        self.from_cache = from_cache
        #: Why it was not cached; empty when it was.
        self.uncacheable = uncacheable
        self._lowered_names = dict(lowered_names or {})
        self._log = log
        self._meta: Entry | None = None

    @property
    def lowered_names(self) -> dict[str, str]:
        """Name expression → the mangled name to look up in the module."""
        self._read_meta()
        return self._lowered_names

    @property
    def log(self) -> str:
        """What NVRTC said: warnings, usually nothing."""
        self._read_meta()
        return self._log

    def _read_meta(self) -> None:
        """Most hits want the binary alone, so the rest is decoded when it is asked for."""
        if self._meta is not None:
            meta = self._meta.meta
            self._lowered_names, self._log, self._meta = meta["lowered_names"], meta["log"], None

    def __repr__(self) -> str:
        made = ", ".join(f"{name} {len(getattr(self, name))} B" for name in _TARGETS if getattr(self, name) is not None)
        return f"<CachedKernel {made}{' from cache' if self.from_cache else ''}>"


def compile(  # noqa: A001  # nvrtc.compile, by contract
    source: str | bytes,
    *,
    arch: str,
    options: Sequence[str] = (),
    headers: Mapping[str, str | bytes] | None = None,
    name_expressions: Sequence[str] = (),
    name: str = "default_program",
    targets: Iterable[str] = ("cubin",),
    cache: Cache | None = None,
    cache_failures: bool = False,
) -> CachedKernel:
    """Compile, or load what was compiled before from the same everything.

    ``headers`` are in-memory headers by the name they are included under. ``cache``
    is the configured one unless given. With ``cache_failures`` a source that did not
    compile is remembered, and fails again at once with the same log.

    Raises CompileError with NVRTC's log, and UsageError for arguments that make no
    sense. Only NVRTC itself can fail a compile: the cache never does.
    """
    wanted = _check_targets(targets if isinstance(targets, str) else tuple(targets), arch)
    text = source.encode() if isinstance(source, str) else bytes(source)
    given = [f"--gpu-architecture={arch}", *options]
    cache = cache if cache is not None else shared()
    try:
        key, found, compiler = _key(text, arch, given, headers, name_expressions, name, wanted)
    except UncacheableError as error:
        say("info", f"nvrtc {name}: not cached: {error}")
        made = _compile(text, given, headers, name_expressions, name, wanted)
        return CachedKernel(**made.artifacts, **made.meta, uncacheable=str(error))  # type: ignore[arg-type]  # by name
    if cache_failures:
        _raise_known_failure(cache, key)

    def work() -> Compiled:
        made = _compile(text, given, headers, name_expressions, name, wanted)
        # The key was a prediction: of which library gets loaded, and of what the headers hold.
        made.store = compiler.confirm() and found.unchanged()
        return made

    try:
        entry = cache.get_or_compile(key, work)
    except CompileError as error:
        if cache_failures:
            cache.put(Key(_FAILED, key=key, name=key.name), {}, meta={"log": error.log, "status": error.status})
        raise
    return _from_entry(entry)


def _key(
    text: bytes,
    arch: str,
    given: list[str],
    headers: Mapping[str, str | bytes] | None,
    name_expressions: Sequence[str],
    name: str,
    targets: tuple[str, ...],
) -> tuple[Key, Closure, Toolchain]:
    """The complete key. Raises UncacheableError where there is none."""
    parsed = _options.parse(given)
    if parsed.refusals:
        raise UncacheableError("; ".join(parsed.refusals), "options")
    compiler = toolchain.nvrtc()
    found = closure(text, name=name, headers=headers, **parsed.search())
    key = Key(
        KIND,
        # Without its directory, which differs between machines; where it matters the closure holds it.
        name=name.rpartition("/")[2],
        source=text,
        options=parsed,
        headers=found,
        memory={label: digest_of(_bytes(content)) for label, content in headers.items()} if headers else None,
        name_expressions=tuple(name_expressions),
        targets=targets,
        toolchain=compiler,
    )
    return key, found, compiler


def _raise_known_failure(cache: Cache, key: Key) -> None:
    failed = cache.get(Key(_FAILED, key=key, name=key.name))
    if failed is not None and cache.get(key) is None:
        meta = failed.meta
        raise CompileError(f"{key.name}: {meta['status']} (remembered)", meta["log"], meta["status"])


def _check_targets(targets: str | tuple[str, ...], arch: str) -> tuple[str, ...]:
    known = _KNOWN_TARGETS.get((targets, arch))
    if known is not None:
        return known
    asked = {targets} if isinstance(targets, str) else set(targets)
    if not asked or asked - set(_TARGETS):
        raise UsageError(f"targets are some of {', '.join(_TARGETS)}, not {sorted(asked)}")
    if not isinstance(arch, str) or not arch.startswith(("sm_", "compute_", "lto_")):
        raise UsageError(f"arch is a name such as 'sm_90' or 'compute_90', not {arch!r}")
    if "cubin" in asked and not arch.startswith("sm_"):
        raise UsageError(f"a cubin is for a real architecture such as 'sm_90', not {arch!r}")
    wanted = tuple(target for target in _TARGETS if target in asked)
    if len(_KNOWN_TARGETS) < 1024:
        _KNOWN_TARGETS[targets, arch] = wanted
    return wanted


#: Combinations that were checked.
_KNOWN_TARGETS: dict[tuple[object, str], tuple[str, ...]] = {}


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


# -- NVRTC itself ------------------------------------------------------------------


def _compile(
    text: bytes,
    given: list[str],
    headers: Mapping[str, str | bytes] | None,
    name_expressions: Sequence[str],
    name: str,
    targets: tuple[str, ...],
) -> Compiled:
    """Run NVRTC: once for cubin and PTX, and once more for LTO-IR, which it makes only instead of them."""
    artifacts: dict[str, bytes] = {}
    logs: list[str] = []
    lowered: dict[str, str] = {}
    machine = tuple(target for target in targets if target != "ltoir")
    if machine:
        _run(text, given, headers, name_expressions, name, machine, artifacts, logs, lowered)
    if "ltoir" in targets:
        _run(text, [*given, "-dlto"], headers, name_expressions, name, ("ltoir",), artifacts, logs, lowered)
    return Compiled(artifacts, meta={"log": "".join(logs), "lowered_names": lowered})


def _run(
    text: bytes,
    given: list[str],
    headers: Mapping[str, str | bytes] | None,
    name_expressions: Sequence[str],
    name: str,
    targets: tuple[str, ...],
    artifacts: dict[str, bytes],
    logs: list[str],
    lowered: dict[str, str],
) -> None:
    from cuda.bindings import nvrtc

    success = nvrtc.nvrtcResult.NVRTC_SUCCESS

    def ok(result: tuple[Any, ...]) -> Any:
        if result[0] != success:
            raise CompileError(f"{name}: {result[0].name}", "".join(logs), result[0].name)
        return result[1] if len(result) > 1 else None

    def read(size: Any, get: Any) -> bytes:
        data = bytes(ok(size(program)))
        ok(get(program, data))
        return data

    names = [label.encode() for label in headers or {}]
    contents = [_bytes(content) for content in (headers or {}).values()]
    program = ok(nvrtc.nvrtcCreateProgram(text, name.encode(), len(names), contents or None, names or None))
    try:
        for expression in name_expressions:
            ok(nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        flags = [option.encode() for option in given]
        result = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        logs.append(
            read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0").decode("utf-8", "replace")
        )
        ok(result)
        for expression in name_expressions:
            lowered[expression] = ok(nvrtc.nvrtcGetLoweredName(program, expression.encode())).decode()
        if "ptx" in targets:
            artifacts["ptx"] = read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        if "cubin" in targets:
            artifacts["cubin"] = read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        if "ltoir" in targets:
            artifacts["ltoir"] = read(nvrtc.nvrtcGetLTOIRSize, nvrtc.nvrtcGetLTOIR)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


# -- results -----------------------------------------------------------------------


def _from_entry(entry: Entry) -> CachedKernel:
    kernel = CachedKernel(cost=entry.cost, from_cache=entry.tier != "compiled")
    for name in entry:
        setattr(kernel, name, entry[name])
    kernel._meta = entry
    return kernel


# -- for those who bring their own compile step ------------------------------------


class KernelKey:
    """A key made by hand: a hash of the source, the architecture, a hash of the options.

    What those hashes cover is the caller's business; nothing else is looked at.
    """

    __slots__ = ("arch", "options_hash", "source_hash")

    def __init__(self, source_hash: str, arch: str, options_hash: str) -> None:
        for label, value in (("source_hash", source_hash), ("arch", arch), ("options_hash", options_hash)):
            if not isinstance(value, str) or not value:
                raise UsageError(f"{label} is a non-empty string, not {value!r}")
        self.source_hash = source_hash
        self.arch = arch
        self.options_hash = options_hash

    def key(self) -> Key:
        return Key(
            _BY_HAND,
            source_hash=self.source_hash,
            arch=self.arch,
            options_hash=self.options_hash,
            # What another version of hotstart stored may mean something else: a miss.
            producer=__version__,
        )

    def __repr__(self) -> str:
        return f"KernelKey({self.source_hash[:12]!r}…, {self.arch!r}, {self.options_hash[:12]!r}…)"


def hash_source(source: str | bytes) -> str:
    """The digest of a source's text; of its text alone, not of what it includes."""
    return digest_of(_bytes(source))


def hash_options(options: Sequence[str]) -> str:
    """The digest of options in canonical form: spelling variants are equal, order counts where NVRTC says so.

    Directories and headers count as they are spelled: what is in them is the caller's to put into ``source_hash``.
    """
    return digest_of(encode(_options.parse(options).complete()))


def get(kernel_key: KernelKey, *, cache: Cache | None = None) -> CachedKernel | None:
    """What ``insert`` stored under this key, or None."""
    entry = (cache if cache is not None else shared()).get(kernel_key.key())
    return _from_entry(entry) if entry is not None else None


def insert(kernel_key: KernelKey, kernel: CachedKernel, *, cache: Cache | None = None) -> bool:
    """Store a kernel compiled elsewhere; whether it was stored."""
    artifacts = {name: data for name in _TARGETS if (data := getattr(kernel, name)) is not None}
    meta = {"log": kernel.log, "lowered_names": kernel.lowered_names}
    return (cache if cache is not None else shared()).put(kernel_key.key(), artifacts, meta=meta, cost=kernel.cost)
