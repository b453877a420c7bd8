"""What is behind one compiled model or function: the packages it has loaded, and plain torch.compile."""

from __future__ import annotations

import atexit
import json
import os
import threading
import weakref
from contextlib import contextmanager
from types import MethodType

import torch

from ..log import say
from . import marks, record, versions
from .key import Call, name_of
from .package import OTHER, Package
from .reasons import NotHotError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..cache import Cache
    from ..keys.key import Key
    from .promotion import Wanted

_BREAKS = NotHotError(
    "the graph breaks",
    "torch._dynamo.explain says where; torch.where and torch.cond keep what depends on data in the graph",
)

#: Packages in use by one wrapper, and packages it asks helpers for: as many shapes as torch.compile takes.
_SHAPES = 8
#: Shapes that are known to have no package.
_REMEMBERED = 1024


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
            if marks.is_condemned(marks.folder_of(cache, key), entry["package"]):
                raise NotHotError("a check has found this package to be wrong")
            path = Private().path_for(f"{key.digest[:40]}.pt2", entry["package"])
            with _unpacked_in(os.path.dirname(path)):
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
            from .check import condemn, verified

            made, reason = verified(self.target, package, args, kwargs)
            if reason:
                condemn(cache, key, reason)
                self._served.remove(package)
                record.note("quarantined", self.name, key.digest, reason)
                say("error", f"{self.name}: its package was wrong, and is in quarantine: {reason}")
                return OTHER
        else:
            made = package(args, kwargs)
        if made is not OTHER:
            self._packages = [package, *[other for other in self._packages if other is not package][: _SHAPES - 1]]
        return made

    def _remember(self, shape: object) -> None:
        """Calls that look like this one go to torch.compile without another look."""
        if len(self._refused) >= _REMEMBERED:
            self._refused.clear()
        self._refused.add(shape)

    def _refuse(self, error: NotHotError, shape: object, args: Any, kwargs: Any) -> Any:
        self._remember(shape)
        record.note("plain", self.name, "", error.reason, error.advice)
        level = "info" if error.expected else "warning"
        say(level, f"{self.name} will not start hot: {error}", once=f"cold {self.name} {error}")
        return self.run_plain(args, kwargs)

    def _miss(self, cache: Cache, key: Key, call: Call, shape: object, args: Any, kwargs: Any) -> Any:
        self._remember(shape)
        self.plain()
        before = versions.graphs()
        made = self.run_plain(args, kwargs)
        if self.promote == "never":
            return made
        self._asked += 1
        if self._asked > _SHAPES:
            record.note("skipped", self.name, key.digest, f"more than {_SHAPES} shapes", "mark what varies as dynamic")
            return made
        from .promotion import Wanted

        wanted = Wanted(self, cache, key, call, args, kwargs)
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
            from .promotion import Wanted, redirect

            redirect()
            before = versions.graphs()
            torch.compile(self.target, backend="eager")(*args, **kwargs)
            wanted = Wanted(self, cache, key, call, args, kwargs)
            if versions.broke(before):
                wanted.refused(_BREAKS)
            else:
                wanted.promote(wait=True)

    # -- what is behind it ----------------------------------------------------------

    def plain(self) -> Callable[..., Any]:
        """torch.compile of the target, made when it is first needed: it imports Dynamo."""
        if self._plain is None:
            from .promotion import redirect  # with all that an export needs: a hit does without

            redirect()
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
            from ..opening import shared

            self._cache = shared()
        if self._cache.path is None:
            raise NotHotError("there is no store on disk", "unset HOTSTART_DISABLE, or give a cache with a path")
        return self._cache


@contextmanager
def _unpacked_in(directory: str) -> Iterator[None]:
    """Let the loader unpack to this directory, which goes when the process does, however that ends."""
    was = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = directory
    try:
        yield
    finally:
        if was is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = was


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


def _at_exit(wanted: Wanted) -> None:
    if not _waiting:
        atexit.register(_promote_all)
    _waiting.append(wanted)


def _promote_all() -> None:
    while _waiting:
        _waiting.pop().promote(wait=False)


def _tell_dynamo(values: Any) -> None:
    """Say to torch.compile what ``mark_dynamic`` said to us; only now is Dynamo loaded."""
    for value in values:
        for dimension in getattr(value, "_hotstart_dynamic", ()) if isinstance(value, torch.Tensor) else ():
            torch._dynamo.maybe_mark_dynamic(value, dimension)
