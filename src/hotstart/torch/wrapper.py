"""``compile``: what the user holds. Serves a call from a package, or as plain torch.compile would."""

from __future__ import annotations

import atexit
import json
import os
import threading
import weakref
from types import MethodType

import torch

from ..errors import UsageError
from ..log import say
from . import promotion, record, versions
from .check import verified
from .key import Call, name_of
from .package import OTHER, Package
from .reasons import NotHotError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from ..cache import Cache
    from ..keys.key import Key

PROMOTE = ("background", "exit", "now", "never")

_BREAKS = NotHotError("the graph breaks", "torch._dynamo.explain says where")

#: Packages in use by one wrapper, and packages it asks helpers for: as many shapes as torch.compile takes.
_SHAPES = 8


class Engine:
    """Everything behind one compiled model or function: the packages that are loaded, and plain torch.compile."""

    def __init__(
        self,
        target: Any,
        cache: Cache | None,
        promote: str,
        check: bool | None,
        arguments: dict[str, Any],
        owner: Any = None,
    ) -> None:
        self._target = target
        #: Of a method, the object: weakly, because the engines of a class outlive its objects.
        self._owner = weakref.ref(owner) if owner is not None else None
        self.name = name_of(target)
        self.promote = promote
        self.check = os.environ.get("HOTSTART_TORCH_CHECK", "") in ("1", "true") if check is None else check
        self.arguments = arguments
        self._cache = cache
        self._packages: list[Package] = []
        self._served: list[Package] = []
        self._plain: Callable[..., Any] | None = None
        self._refused: set[object] = set()
        self._asked = 0
        self._lock = threading.RLock()
        #: Held while the tensors of the model are exchanged for an export; calls of torch.compile are counted.
        self.gate = threading.Condition()
        self.active = 0
        self._version_reason = versions.unsupported()

    @property
    def target(self) -> Any:
        if self._owner is None:
            return self._target
        return MethodType(self._target, self._owner())

    def of(self, owner: Any) -> Engine:
        """The engine of this function as a method of ``owner``."""
        return Engine(self._target, self._cache, self.promote, self.check, self.arguments, owner)

    def bound(self) -> Callable[..., Any]:
        owner = self._owner() if self._owner is not None else None  # kept by the function for as long as that is

        def method(*args: Any, **kwargs: Any) -> Any:
            return self.call(args, kwargs) if owner is not None else None

        return method

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for package in self._packages:
            made = package(args, kwargs)
            if made is not OTHER:
                return made
        return self._slow(args, kwargs)

    # -- first calls --------------------------------------------------------------

    def _slow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return self.target(*args, **kwargs)  # somebody else compiles this, with us in it
        shape = _signature(args, kwargs)
        if shape in self._refused:
            return self.run_plain(args, kwargs)
        with self._lock:
            return self._look_up(args, kwargs, shape)

    def _look_up(self, args: tuple[Any, ...], kwargs: dict[str, Any], shape: object) -> Any:
        try:
            if self._version_reason:
                raise NotHotError(self._version_reason, "use a torch in that range")
            cache = self._open()
            call = Call(self.target, args, kwargs, self.arguments)
            key = call.key()
        except NotHotError as error:
            return self._refuse(error, shape, args, kwargs)
        package = self._known(key, call) or self._load(cache, key, call)
        if package is not None:
            made = self._serve(package, cache, key, args, kwargs)
            if made is not OTHER:
                return made
        return self._miss(cache, key, call, shape, args, kwargs)

    def _known(self, key: Key, call: Call) -> Package | None:
        """A package of this process that has this key: something it watches has changed and changed back."""
        for package in self._served:
            if package.digest == key.digest and package.same_model(call):
                try:
                    package.attach(call)
                except NotHotError:
                    return None
                return package
        return None

    def _load(self, cache: Cache, key: Key, call: Call) -> Package | None:
        entry = cache.get(key)
        if entry is None:
            return None
        from ..compilers.private import Private

        try:
            path = Private().path_for(f"{key.digest[:40]}.pt2", entry["package"])
            loader = versions.load(path, call.device[1])
            package = Package(call, loader, json.loads(entry.meta["about"]), key.digest)
        except NotHotError as error:
            say("info", f"{self.name}: {error}")
            return None
        except Exception as error:
            # A package that does not load is no reason to fail: torch.compile is there.
            record.note("failed", self.name, key.digest, f"the package could not be loaded: {error!r}"[:500])
            say("warning", f"{self.name}: its package could not be loaded: {error!r}", once=f"load {key.digest}")
            return None
        if self.arguments.get("mode") == "max-autotune" and call.device[0] == "cuda":
            say(
                "warning",
                f"{self.name}: max-autotune asks for CUDA graphs too; its package is launched without them "
                '(mode="max-autotune-no-cudagraphs" asks for that, promote="never" for torch.compile)',
                once=f"graphs {self.name}",
            )
        self._served = [package, *self._served[: 2 * _SHAPES]]
        record.note("hit", self.name, key.digest, seconds=entry.cost)
        return package

    def _serve(self, package: Package, cache: Cache, key: Key, args: Any, kwargs: Any) -> Any:
        first = package not in self._packages
        if self.check and first:
            made, reason = verified(self.target, package, args, kwargs)
            if reason:
                cache.delete(key)
                self._served.remove(package)
                record.note("quarantined", self.name, key.digest, reason)
                say("error", f"{self.name}: its package was not right and is gone: {reason}")
                return OTHER
        else:
            made = package(args, kwargs)
        if made is not OTHER:
            self._packages = [package, *[other for other in self._packages if other is not package][: _SHAPES - 1]]
        return made

    def _refuse(self, error: NotHotError, shape: object, args: Any, kwargs: Any) -> Any:
        if shape is not None:
            self._refused.add(shape)
        record.note("plain", self.name, "", error.reason, error.advice)
        say("info", f"{self.name} runs as plain torch.compile: {error}", once=f"plain {self.name} {error}")
        return self.run_plain(args, kwargs)

    def _miss(self, cache: Cache, key: Key, call: Call, shape: object, args: Any, kwargs: Any) -> Any:
        if shape is not None:
            self._refused.add(shape)
        self.plain()
        before = versions.graphs()
        made = self.run_plain(args, kwargs)
        if self.promote == "never":
            return made
        self._asked += 1
        if self._asked > _SHAPES:
            record.note("skipped", self.name, key.digest, f"more than {_SHAPES} shapes", "mark what varies as dynamic")
            return made
        wanted = promotion.Wanted(self, cache, key, call, args, kwargs)
        if versions.broke(before):
            wanted.refused(_BREAKS)
        elif self.promote == "exit":
            _at_exit(wanted)
        elif wanted.promote(wait=self.promote == "now"):
            self._refused.discard(shape)
        return made

    def warm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Build the package of this call, now. Dynamo looks at it, but nothing is compiled twice."""
        with self._lock:
            try:
                if self._version_reason:
                    raise NotHotError(self._version_reason, "use a torch in that range")
                cache = self._open()
                call = Call(self.target, args, kwargs, self.arguments)
                key = call.key()
            except NotHotError as error:
                record.note("plain", self.name, "", error.reason, error.advice)
                return
            if key in cache:
                record.note("hit", self.name, key.digest)
                return
            promotion.redirect()
            before = versions.graphs()
            torch.compile(self.target, backend="eager")(*args, **kwargs)
            wanted = promotion.Wanted(self, cache, key, call, args, kwargs)
            if versions.broke(before):
                wanted.refused(_BREAKS)
            else:
                wanted.promote(wait=True)

    # -- what is behind it ----------------------------------------------------------

    def plain(self) -> Callable[..., Any]:
        """torch.compile of the target, made when it is first needed: it imports Dynamo."""
        if self._plain is None:
            promotion.redirect()
            self._plain = torch.compile(self._target, **self.arguments)
        return self._plain

    def run_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plain = self.plain()
        with self.gate:
            self.active += 1
        try:
            _tell_dynamo((*args, *kwargs.values()))
            if self._owner is not None:
                return plain(self._owner(), *args, **kwargs)
            return plain(*args, **kwargs)
        finally:
            with self.gate:
                self.active -= 1
                self.gate.notify_all()

    def _open(self) -> Cache:
        if self._cache is None:
            from ..cache import shared

            self._cache = shared()
        if self._cache.path is None:
            raise NotHotError("there is no store on disk", "unset HOTSTART_DISABLE, or give a cache with a path")
        return self._cache


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Something that is the same for calls that look alike, so that a miss is not looked up again at every call."""
    parts: list[object] = [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), len(args), *kwargs]
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            parts.append((value.shape, value.dtype, value.stride(), value.device, value.requires_grad))
        elif value is None or type(value) in (bool, int, float, str):
            parts.append((type(value), value))
        else:
            parts.append(type(value))
    return tuple(parts)


_waiting: list[Any] = []


def _at_exit(wanted: promotion.Wanted) -> None:
    if not _waiting:
        atexit.register(_promote_all)
    _waiting.append(wanted)


def _promote_all() -> None:
    while _waiting:
        _waiting.pop().promote(wait=False)


class CompiledModule(torch.nn.Module):  # type: ignore[misc]
    """A model that ``compile`` returned: called, trained, moved and saved like the one it holds."""

    def __init__(self, module: torch.nn.Module, engine: Engine) -> None:
        super().__init__()
        self._orig_mod = module
        object.__setattr__(self, "_engine", engine)
        self.training = module.training

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._engine.call(args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._engine.call(args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules["_orig_mod"]
        return getattr(self._modules["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_orig_mod", "training"):
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def train(self, mode: bool = True) -> CompiledModule:
        super().train(mode)
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UsageError("a compiled model cannot be pickled; pickle the model it was made from (._orig_mod)")

    def __repr__(self) -> str:
        return f"hotstart.torch.compile({self._orig_mod!r})"


class CompiledFunction:
    """A function that ``compile`` returned."""

    def __init__(self, function: Callable[..., Any], engine: Engine) -> None:
        from functools import update_wrapper

        self._engine = engine
        self._engines: weakref.WeakKeyDictionary[Any, Engine] = weakref.WeakKeyDictionary()
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._engine.call(args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: with packages of its own for each object, for as long as that lives."""
        if instance is None:
            return self
        try:
            engine = self._engines.get(instance)
            if engine is None:
                engine = self._engines[instance] = self._engine.of(instance)
        except TypeError:  # an object that cannot be referred to weakly, or compared
            return MethodType(self, instance)
        return engine.bound()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UsageError("a compiled function cannot be pickled; pickle the one it was made from (__wrapped__)")


def compile(  # noqa: A001  # hotstart.torch.compile, by contract
    model_or_function: Any = None,
    *,
    cache: Cache | None = None,
    promote: str | None = None,
    check: bool | None = None,
    **torch_compile_kwargs: Any,
) -> Any:
    """torch.compile that starts in milliseconds when it has been here before; a call or a decorator.

    ``cache``    the store; None for the configured one
    ``promote``  when a package is built after a miss: ``"background"`` by a detached helper, ``"exit"``
                 when the process ends, ``"now"`` before the call returns, ``"never"``
                 (``HOTSTART_TORCH_PROMOTE`` where it is not given, else ``"background"``)
    ``check``    compare the first result of each package with eager (``HOTSTART_TORCH_CHECK=1``)

    Everything else goes to torch.compile. The result behaves as torch.compile's does. A
    call for which there is a package is served by it, without importing Dynamo; every
    other call by torch.compile. Nothing that goes wrong with packages raises: only a
    value that makes no sense for ``promote`` does (UsageError).
    """
    chosen = promote or os.environ.get("HOTSTART_TORCH_PROMOTE") or "background"
    if chosen not in PROMOTE:
        raise UsageError(f"promote is one of {', '.join(PROMOTE)}, not {chosen!r}")
    if model_or_function is None:
        return lambda given: compile(given, cache=cache, promote=promote, check=check, **torch_compile_kwargs)
    if torch_compile_kwargs.get("disable"):
        return torch.compile(model_or_function, **torch_compile_kwargs)
    if isinstance(model_or_function, CompiledModule | CompiledFunction):
        return model_or_function
    if not callable(model_or_function):
        raise UsageError(f"a model or a function is compiled, not a {type(model_or_function).__qualname__}")
    engine = Engine(model_or_function, cache, chosen, check, torch_compile_kwargs)
    if isinstance(model_or_function, torch.nn.Module):
        return CompiledModule(model_or_function, engine)
    return CompiledFunction(model_or_function, engine)


def warm(model_or_function: Any, *args: Any, cache: Cache | None = None, **kwargs: Any) -> dict[str, Any]:
    """Build the package for one call now and wait for it: for CI, or an image that is to start hot.

    ``compile_kwargs=`` is what ``compile`` would be given. Returns the last record of it:
    ``event`` is ``published``, ``hit`` (it was there), ``plain``, ``failed`` or ``skipped``.
    """
    compile_kwargs = kwargs.pop("compile_kwargs", {})
    Engine(model_or_function, cache, "now", False, compile_kwargs).warm(args, kwargs)
    name = name_of(model_or_function)
    return next(line for line in reversed(record.records()) if line["name"] == name)


def mark_dynamic(tensor: torch.Tensor, dimension: int, *, min: int | None = None, max: int | None = None) -> None:
    """Let this dimension of an input vary: one package for all sizes from ``min`` to ``max``.

    What ``torch._dynamo.mark_dynamic`` does, without importing Dynamo.
    """
    if not 0 <= dimension < tensor.dim():
        raise UsageError(f"a tensor of {tensor.dim()} dimensions has no dimension {dimension}")
    held: Any = tensor
    if not hasattr(held, "_hotstart_dynamic"):
        held._hotstart_dynamic = {}
    held._hotstart_dynamic[dimension] = (max_of(min, 2), max or 0)


def max_of(given: int | None, least: int) -> int:
    """Sizes 0 and 1 are always compiled on their own."""
    return least if given is None or given < least else given


def _tell_dynamo(values: Any) -> None:
    """Say to torch.compile what ``mark_dynamic`` said to us; only now is Dynamo loaded."""
    for value in values:
        for dimension in getattr(value, "_hotstart_dynamic", ()) if isinstance(value, torch.Tensor) else ():
            torch._dynamo.maybe_mark_dynamic(value, dimension)
