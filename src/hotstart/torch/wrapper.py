"""``compile``: what the user holds. Serves a call from a package, or as plain torch.compile would."""

from __future__ import annotations

import os
import weakref
from types import MethodType

import torch

from ..errors import UsageError
from . import record
from .engine import Engine
from .key import name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from ..cache import Cache

PROMOTE = ("background", "exit", "now", "never")


class CompiledModule(torch.nn.Module):  # type: ignore[misc]
    """A model that ``compile`` returned: called, trained, moved and saved like the one it holds."""

    def __init__(self, module: torch.nn.Module, engine: Engine) -> None:
        super().__init__()
        self._orig_mod = module
        object.__setattr__(self, "_engine", engine)
        self.training = module.training

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return super().__call__(*args, **kwargs)  # put on this object and not on the model
        return self._engine.call(args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._engine.call(args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        from copy import deepcopy

        copied, engine = deepcopy(self._orig_mod, memo), self._engine
        return CompiledModule(copied, Engine(copied, engine._cache, engine.promote, engine.check, engine.arguments))

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
