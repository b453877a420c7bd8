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

#: Failures that the same source under the same options has every time.
_LASTING = frozenset({"NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_INVALID_OPTION", "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID"})


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
    options: Iterable[str] = (),
    headers: Mapping[str, str | bytes] | None = None,
    name_expressions: Iterable[str] = (),
    name: str = "default_program",
    targets: Iterable[str] = ("cubin",),
    cache: Cache | None = None,
    cache_failures: bool = False,
) -> CachedKernel:
    """Compile, or load what was compiled before from the same everything.

    ``headers`` are in-memory headers by the name they are included under. ``cache``
    is the configured one unless given. With ``cache_failures`` a source that did not
    compile is remembered, and fails again at once with the same log.

    LTO-IR shows the working directory and the name of the source; where it is asked
    for, both are part of the key. Nothing else is of this machine.

    Raises CompileError with NVRTC's log, and UsageError for arguments that make no
    sense. Only NVRTC itself can fail a compile: the cache never does.
    """
    wanted = _check_targets(targets, arch)
    text = _source(source)
    if type(options) is not list and type(options) is not tuple:
        options = list(_listed("options", options))
    given = [f"--gpu-architecture={arch}", *options]
    # Once: whoever gives a generator gives it for the key and the compile alike.
    expressions = _check_expressions(name_expressions) if name_expressions != () else ()
    if headers is not None:
        headers = _check_headers(headers)
    if type(name) is not str or "\0" in name:
        raise UsageError(f"name is the name of the source in messages, such as 'kernel.cu', not {name!r}")
    cache = cache if cache is not None else shared()
    try:
        key, found, compiler = _key(text, arch, given, headers, expressions, name, wanted)
    except UncacheableError as error:
        say("info", f"nvrtc {name}: not cached: {error}")
        made = _compile(text, given, headers, expressions, name, wanted)
        return CachedKernel(**made.artifacts, **made.meta, uncacheable=str(error))  # type: ignore[arg-type]  # by name
    if cache_failures:
        _raise_known_failure(cache, key)

    def work() -> Compiled:
        made = _compile(text, given, headers, expressions, name, wanted)
        # The key was a prediction: of which library gets loaded, and of what the headers hold.
        made.store = compiler.confirm() and found.unchanged()
        return made

    try:
        entry = cache.get_or_compile(key, work)
    except CompileError as error:
        # Only what the source itself is to blame for, and only if the key says what was compiled: not a header
        # that was half saved at that moment, nor a machine out of memory.
        if cache_failures and error.status in _LASTING and compiler.confirm() and found.unchanged():
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
    try:
        parsed = _options.parse(given)
    except UsageError:
        _options.parse(given[1:])  # says the same, with the caller's own positions
        raise
    if parsed.refusals:
        raise UncacheableError("; ".join(parsed.refusals), "options")
    compiler = toolchain.nvrtc()
    found = closure(text, name=name, headers=headers, **parsed.search("ltoir" in targets))
    # What most compiles do not have is no field of theirs: each would cost a microsecond of every hit.
    more: dict[str, object] = {}
    if headers:
        more["memory"] = {label: digest_of(_bytes(content)) for label, content in headers.items()}
    if name_expressions:
        more["name_expressions"] = tuple(name_expressions)
    key = Key(
        KIND,
        # Without its directory, which differs between machines; where it matters the closure holds it.
        name=name.rpartition("/")[2],
        source=text,
        options=parsed,
        headers=found,
        targets=targets,
        toolchain=compiler,
        **more,
    )
    return key, found, compiler


def _raise_known_failure(cache: Cache, key: Key) -> None:
    failed = cache.get(Key(_FAILED, key=key, name=key.name))
    if failed is not None and cache.get(key) is None:
        meta = failed.meta
        raise CompileError(f"{key.name}: {meta['status']} (remembered)", meta["log"], meta["status"])


def _check_targets(targets: Iterable[str], arch: str) -> tuple[str, ...]:
    if type(arch) is not str or not arch.startswith(("sm_", "compute_", "lto_")):
        raise UsageError(f"arch is a name such as 'sm_90' or 'compute_90', not {arch!r}")
    if type(targets) is not tuple:
        targets = tuple(_listed("targets", targets))
    try:
        known = _KNOWN_TARGETS.get((targets, arch))
    except TypeError:
        known = None  # something in it cannot be hashed, and so is none of those below
    if known is not None:
        return known
    if not targets or any(target not in _TARGETS for target in targets):
        raise UsageError(f"targets are some of {', '.join(_TARGETS)}, not {list(targets)!r}")
    if "cubin" in targets and not arch.startswith("sm_"):
        raise UsageError(f"a cubin is for a real architecture such as 'sm_90', not {arch!r}")
    wanted = tuple(target for target in _TARGETS if target in targets)
    if len(_KNOWN_TARGETS) < 1024:
        _KNOWN_TARGETS[targets, arch] = wanted
    return wanted


#: Combinations that were checked.
_KNOWN_TARGETS: dict[tuple[object, str], tuple[str, ...]] = {}


def _listed(label: str, values: Iterable[str]) -> Iterable[str]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise UsageError(f"{label} is a list of strings, not {values!r}")
    return values


def _source(source: str | bytes) -> bytes:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if not isinstance(source, str):
        raise UsageError(f"source is the text of a program, not {source!r}")
    try:
        return source.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"source is no text: {error}") from None


def _check_expressions(expressions: Iterable[str]) -> tuple[str, ...]:
    listed = tuple(_listed("name_expressions", expressions))
    for position, expression in enumerate(listed):
        if not isinstance(expression, str) or "\0" in expression:
            raise UsageError(f"name_expressions[{position}] is {expression!r}, not a string such as 'scale<float>'")
    return listed


def _check_headers(headers: Mapping[str, str | bytes]) -> Mapping[str, str | bytes]:
    try:
        listed = dict(headers)
    except (TypeError, ValueError):
        raise UsageError(f"headers is a mapping of names to texts, not {headers!r}") from None
    for label, content in listed.items():
        if not isinstance(label, str) or "\0" in label:
            raise UsageError(f"headers has the name {label!r}; a name is a string such as 'value.h'")
        if not isinstance(content, (str, bytes)):
            raise UsageError(f"headers[{label!r}] is a {type(content).__name__}; a header is str or bytes")
    return listed


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
    program = _Program(text, headers or {}, name_expressions, name)
    runs = []
    machine = tuple(target for target in targets if target != "ltoir")
    if machine:
        runs.append(_run(program, given, machine))
    if "ltoir" in targets:
        runs.append(_run(program, [*given, "-dlto"], ("ltoir",)))
    meta = {"log": "".join([log for _, log, _ in runs]), "lowered_names": runs[-1][2]}
    return Compiled({target: data for artifacts, _, _ in runs for target, data in artifacts.items()}, meta=meta)


class _Program:
    """What is compiled, in the form in which NVRTC is given it."""

    __slots__ = ("contents", "expressions", "labels", "name", "text")

    def __init__(
        self, text: bytes, headers: Mapping[str, str | bytes], name_expressions: Sequence[str], name: str
    ) -> None:
        self.text = text
        self.name = name
        self.labels = [_path(label) for label in headers]
        self.contents = [_bytes(content) for content in headers.values()]
        self.expressions = name_expressions


def _run(program: _Program, given: list[str], targets: tuple[str, ...]) -> tuple[dict[str, bytes], str, dict[str, str]]:
    """One compile: the artifacts, the log, the lowered names. Raises CompileError."""
    from cuda.bindings import nvrtc

    success = nvrtc.nvrtcResult.NVRTC_SUCCESS
    log = ""

    def ok(result: tuple[Any, ...]) -> Any:
        if result[0] != success:
            raise CompileError(f"{program.name}: {result[0].name}", log, result[0].name)
        return result[1] if len(result) > 1 else None

    def read(what: str) -> bytes:
        data = bytes(ok(getattr(nvrtc, f"nvrtcGet{what}Size")(handle)))
        ok(getattr(nvrtc, f"nvrtcGet{what}")(handle, data))
        return data

    labels, contents = program.labels or None, program.contents or None
    handle = ok(nvrtc.nvrtcCreateProgram(program.text, _path(program.name), len(program.labels), contents, labels))
    try:
        for expression in program.expressions:
            ok(nvrtc.nvrtcAddNameExpression(handle, expression.encode()))
        flags = [_path(option) for option in given]
        result = nvrtc.nvrtcCompileProgram(handle, len(flags), flags)
        log = read("ProgramLog").rstrip(b"\0").decode("utf-8", "replace")
        ok(result)
        lowered = {
            expression: ok(nvrtc.nvrtcGetLoweredName(handle, expression.encode())).decode()
            for expression in program.expressions
        }
        return {target: read(target.upper()) for target in targets}, log, lowered
    finally:
        nvrtc.nvrtcDestroyProgram(handle)


def _path(text: str | bytes) -> bytes:
    """The bytes of a text that may hold a path, and a path may be no text."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


# -- results -----------------------------------------------------------------------


def _from_entry(entry: Entry) -> CachedKernel:
    # Not through __init__: its arguments would be a tenth of a hit.
    kernel = CachedKernel.__new__(CachedKernel)
    kernel.ptx = kernel.cubin = kernel.ltoir = None
    for name in entry:
        setattr(kernel, name, entry[name])
    kernel.cost = entry.cost
    kernel.from_cache = entry.tier != "compiled"
    kernel.uncacheable = ""
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
    return digest_of(_source(source))


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
