"""The key of one call: everything that its result depends on, besides the values of tensors."""

from __future__ import annotations

import os
import sys
from types import BuiltinFunctionType, FunctionType, MethodType

import torch

from ..errors import UncacheableError
from ..keys.functions import distributions
from ..keys.functions.walk import Walk
from ..keys.key import Key
from . import reads, state
from .patched import patches
from .reach import places
from .reasons import NotHotError
from .structure import classes, flatten
from .survey import Survey
from .versions import changed_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .reach import Place

#: Raised when what is in a package, or how it is called, changes.
_VERSION = 2

#: What torch and we note on tensors for ourselves.
_MARKS = ("_dynamo_", "_hotstart_", "_has_dynamo_", "_specialize_on", "_typed_storage")

#: Modes of torch.compile, and what each of them sets, less the CUDA graphs that a package cannot have.
_MODES: dict[str | None, dict[str, object]] = {
    None: {},
    "default": {},
    "max-autotune": {"max_autotune": True, "coordinate_descent_tuning": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True, "coordinate_descent_tuning": True},
}


class Call:
    """One call, taken apart: what ``key`` needs, and what a package is bound to."""

    __slots__ = (
        *("asked", "device", "every_dimension", "leaves", "name", "now", "options", "places", "ranges", "settings"),
        *("survey", "template", "walks"),
    )

    def __init__(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: Mapping[str, Any],
        *,
        after_a_call: bool = False,
    ) -> None:
        """Raises NotHotError when no complete key can be made, or a package would not be right."""
        self.now = state.now()
        self.settings = state.describe(self.now)
        self.options = options_of(arguments)
        self.leaves: list[Any] = []
        self.template = flatten((args, kwargs), self.leaves)
        for leaf in self.leaves:
            _check_input(leaf)
        state.global_hooks()
        self.survey = Survey(target).run()
        #: Questions to the process, whose answers count.
        self.asked = reads.check(self.survey, after_a_call=after_a_call)
        self.settings.update((f"{name}()", str(function())) for name, function in self.asked)
        self.name = name_of(target)
        #: Where code of libraries finds what it calls, and what else was fingerprinted for ``key``.
        self.places: list[Place] = []
        self.walks: list[Walk] = []
        tensors = [*self.survey.tensors, *self.leaves]
        held = set(map(id, self.survey.tensors))
        if any(id(leaf) in held for leaf in self.leaves):
            raise NotHotError("a tensor of the model is also passed to it", "pass a view or a copy")
        if self.settings["grad"] and any(tensor.requires_grad for tensor in tensors):
            raise NotHotError(
                "gradients are wanted: training runs on torch.compile's own caches",
                "call it under torch.no_grad() or torch.inference_mode() for inference",
                expected=True,
            )
        self.device = _device(tensors)
        #: For each input, for each dimension marked as dynamic, its range.
        self.every_dimension = bool(arguments.get("dynamic"))
        self.ranges = [_marked(leaf, self.every_dimension) for leaf in self.leaves]
        if self.device[0] != "cpu":
            self.settings.pop("threads", None)  # compiled into code for a CPU alone

    def key(self) -> Key:
        survey = self.survey
        modules = [type(value) for _, value in survey.nodes if isinstance(value, torch.nn.Module)]
        self.places = places(survey.functions, dict.fromkeys([*survey.foreign, *modules]))
        self.walks = [Walk(kind) for kind in classes(self.template)]
        try:
            inputs = [walk.digest() for walk in self.walks]
            return Key(
                "torch",
                version=_VERSION,
                name=self.name,
                code=survey.digits,
                order=reads.orders(survey),
                patched=patches(dict.fromkeys(modules), self.places, self.walks),
                tensors=[describe(tensor) for tensor in survey.tensors],
                structure=self.template,
                classes=inputs,
                inputs=[describe(leaf, marked) for leaf, marked in zip(self.leaves, self.ranges, strict=True)],
                same=_pattern(self.leaves),
                settings=self.settings,
                environment=state.environment(),
                config=changed_settings(),
                options=self.options,
                torch=distributions.owner(torch.__file__) or f"{torch.__version__} {torch.version.git_version}",
                triton=_triton() if self.device[0] != "cpu" else "",
                device=state.device(*self.device),
                cpu=state.cpu(),
            )
        except UncacheableError as error:
            raise NotHotError(str(error)) from None


def name_of(target: Any) -> str:
    """What people call it: the qualified name of a function, or of the class of a model."""
    # By its type, and not by asking it: a model's own __getattr__ may answer anything, or raise.
    named = target if isinstance(target, FunctionType | MethodType | BuiltinFunctionType | type) else type(target)
    return str(named.__qualname__).rpartition("<locals>.")[2]


def describe(tensor: Any, marked: Mapping[int, tuple[int, int]] | None = None) -> tuple[object, ...]:
    """What a compile depends on of a tensor. The size of a dynamic dimension is its range; then it is contiguous."""
    sizes = tuple((marked or {}).get(at, size) for at, size in enumerate(tensor.shape))
    strides = "contiguous" if marked else tuple(tensor.stride())
    kind = "" if type(tensor) is torch.Tensor else type(tensor).__name__
    return sizes, strides, str(tensor.dtype), tensor.device.type, tensor.requires_grad, kind, attributes(tensor)


def attributes(tensor: Any) -> list[tuple[str, object]]:
    """What somebody has hung on a tensor, which a forward may read: plain values, by value."""
    found = []
    for name, value in vars(tensor).items():
        if name.startswith(_MARKS):
            continue
        if not isinstance(value, bool | int | float | str | None):
            raise NotHotError(f"a tensor has the attribute {name}, a {type(value).__qualname__}", "keep it elsewhere")
        found.append((name, (type(value).__name__, str(value))))
    return sorted(found)


def options_of(arguments: Mapping[str, Any]) -> dict[str, object]:
    """Inductor's settings for these arguments of torch.compile. Raises NotHotError for what a package cannot be."""
    backend = arguments.get("backend", "inductor")
    if backend != "inductor":
        raise NotHotError(f"the backend is {backend!r}", "only Inductor makes packages")
    mode = arguments.get("mode")
    if mode not in _MODES:
        raise NotHotError(f"mode={mode!r} needs CUDA graphs, which a package has not", 'use mode="max-autotune"')
    found = {**_MODES[mode], **(arguments.get("options") or {})}
    if found.pop("triton.cudagraphs", False):
        raise NotHotError("CUDA graphs are asked for, which a package has not", "leave triton.cudagraphs out")
    for name, value in found.items():
        if not isinstance(value, bool | int | float | str | None):
            raise NotHotError(f"the option {name} is a {type(value).__qualname__}", "use plain values")
    return found


def _check_input(tensor: Any) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise NotHotError(
            f"an input is a tensor of layout {tensor.layout} on {tensor.device.type}",
            "packages take dense tensors that have content",
        )
    if tensor.is_conj() or tensor.is_neg():
        raise NotHotError("an input is lazily conjugated or negated", "call resolve_conj() or resolve_neg()")


def _device(tensors: list[Any]) -> tuple[str, int]:
    """The one device that everything is on. Scalars may stay on the CPU, as everywhere in torch."""
    found = {tensor.device for tensor in tensors if tensor.dim() or tensor.device.type != "cpu"}
    if len(found) > 1:
        raise NotHotError(
            f"tensors are on several devices ({', '.join(sorted(map(str, found)))})",
            "compile the parts that are each on one device",
        )
    if not found:
        return "cpu", -1
    device = found.pop()
    return device.type, -1 if device.index is None else device.index


def _marked(tensor: Any, every: bool) -> dict[int, tuple[int, int]]:
    """The dimensions that ``mark_dynamic`` (ours or Dynamo's) marked, each with its range.

    ``dynamic=True`` marks all that can be: those of size 0 and 1 are compiled on their own, as torch does.
    """
    found: dict[int, tuple[int, int]] = dict(getattr(tensor, "_hotstart_dynamic", None) or {})
    for at in getattr(tensor, "_dynamo_dynamic_indices", None) or ():
        found.setdefault(at, (2, 0))
    for mark in getattr(tensor, "_dynamo_dynamic_range", None) or ():
        found[mark.dim] = (max(mark.min or 2, 2), mark.max or 0)
    if found and not tensor.is_contiguous():
        raise NotHotError("an input with a dynamic dimension is not contiguous", "call contiguous() first")
    if every and tensor.is_contiguous():
        for at, size in enumerate(tensor.shape):
            if size > 1:
                found.setdefault(at, (2, 0))
    return dict(sorted(found.items()))


def _pattern(tensors: list[Any]) -> list[int]:
    """Which of these are one and the same object: each by the first that it is."""
    first: dict[int, int] = {}
    return [first.setdefault(id(tensor), at) for at, tensor in enumerate(tensors)]


def _triton() -> str:
    """The identity of the installed Triton, which is not imported; "" where there is none."""
    for place in sys.path:
        path = os.path.join(place or os.getcwd(), "triton", "__init__.py")
        if os.path.isfile(path):
            return distributions.owner(path) or _unowned(path)
    return ""


def _unowned(path: str) -> str:
    raise NotHotError(f"the Triton at {os.path.dirname(path)} belongs to no installed distribution")
