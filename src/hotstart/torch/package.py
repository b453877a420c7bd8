"""A loaded package: what it checks before each call, and the call.

The loader checks nothing: other shapes, strides or dtypes than those it was compiled for
give wrong numbers or a crash. So each call compares, in this order, torch's settings,
the structure of the arguments, the tensors in their slots, the metadata of every tensor,
and what the survey read of Python. Anything that differs makes the call a miss, which
costs the caller a new key, never a wrong result.
"""

from __future__ import annotations

from operator import getitem, is_
from threading import RLock

import torch

from . import versions
from .conditions import hold
from .key import attributes
from .reasons import NotHotError
from .state import READERS
from .structure import TENSOR, flatten, from_json, restore
from .watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .key import Call
    from .structure import Template

#: What a call that this package does not serve returns.
OTHER = object()


class Package:
    """One entry, loaded and bound to one model in one process.

    ``about`` is what the entry says: ``outputs`` (the template of the result),
    ``mutated`` (numbers of the inputs it writes to), ``symbols`` (for each dynamic
    dimension: input, dimension, name, least and greatest size), ``conditions`` (on these
    sizes, by name).
    """

    __slots__ = (
        *("_bound", "_conditions", "_containers", "_device", "_early", "_guards", "_hung", "_inputs", "_loader"),
        *("_lock", "_mutated", "_names", "_numbers", "_outputs", "_pattern", "_plain_inputs", "_ranges", "_rebound"),
        *("_settings", "_single", "_symbols", "_template", "_tensors", "_watch", "digest"),
    )

    def __init__(self, call: Call, loader: Any, about: dict[str, Any], digest: str) -> None:
        self.digest = digest
        self._loader = loader
        # The loader is one for one thread at a time, and a thread may come back to it from a finalizer.
        self._lock = RLock()
        self._device = call.device
        self._template = call.template
        self._inputs = len(call.leaves)
        #: How the usual call looks: some tensors one after another, no keywords.
        self._plain_inputs = call.template == ("(", ("(", *[TENSOR] * self._inputs), ("{", ()))
        self._outputs: Template = from_json(about["outputs"])
        self._single = self._outputs == TENSOR
        self._mutated: list[int] = about["mutated"]
        self._symbols: list[list[Any]] = about["symbols"]
        self._conditions: list[Any] = about["conditions"]
        self._ranges = call.ranges
        self._pattern = _pattern(call.leaves)
        self.attach(call)

    def attach(self, call: Call) -> None:
        """Take the call's tensors, settings and Python state as those that were checked."""
        survey = call.survey
        self._settings = call.now
        # With a GPU the call returns while it runs: what is checked after it costs nothing. Not
        # where the call writes to its inputs, which could not be taken back.
        self._early = call.device[0] == "cpu" or bool(self._mutated)
        self._containers = [container for container, _ in survey.slots]
        self._names = [name for _, name in survey.slots]
        self._bound = list(map(getitem, self._containers, self._names))
        self._tensors = list(survey.tensors)
        numbers = {id(tensor): at for at, tensor in enumerate(survey.tensors)}
        self._numbers = [numbers[id(tensor)] for tensor in self._bound]
        self._watch = Watch(call)
        #: What hangs on tensors that have come since: nothing, or the key has to be asked.
        self._rebound: list[dict[str, Any]] = []
        hung = list(map(attributes, call.leaves))
        self._hung = hung if any(hung) else []
        self._guard(call.leaves)

    def _guard(self, leaves: list[Any]) -> None:
        marks = [*[{} for _ in self._tensors], *self._ranges]
        tensors = [*self._tensors, *leaves]
        sizes = [
            [None if at in marked else size for at, size in enumerate(tensor.shape)]
            for tensor, marked in zip(tensors, marks, strict=True)
        ]
        strides = [
            [None] * tensor.dim() if marked else list(tensor.stride())
            for tensor, marked in zip(tensors, marks, strict=True)
        ]
        self._guards = versions.tensor_guards(tensors, sizes, strides)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result, or OTHER when this package is not the one for this call."""
        if [reader() for reader in READERS] != self._settings:
            return OTHER
        if self._plain_inputs:
            if kwargs or len(args) != self._inputs:
                return OTHER
            leaves: Any = args
        else:
            leaves = []
            try:
                if flatten((args, kwargs), leaves) != self._template:
                    return OTHER
            except NotHotError:
                return OTHER
        try:
            bound = list(map(getitem, self._containers, self._names))
        except (KeyError, IndexError):
            return OTHER
        if not all(map(is_, bound, self._bound)) and not self._rebind(bound, leaves):
            return OTHER
        if self._rebound and any(self._rebound):
            return OTHER
        tensors = self._tensors
        try:
            if not self._guards.check(*tensors, *leaves):
                return OTHER
        except (TypeError, RuntimeError):
            return OTHER  # not a tensor
        if self._inputs > 1 and _pattern(leaves) != self._pattern:
            return OTHER
        hung = [leaf.__dict__ for leaf in leaves]
        if (any(hung) or self._hung) and not self._hung_alike(leaves):
            return OTHER
        if self._symbols and not self._fits(leaves):
            return OTHER
        if self._early:
            if not self._watch.same() or (self._mutated and self._overlaps([*tensors, *leaves])):
                return OTHER
            outputs = self._run([*tensors, *leaves])
        else:
            outputs = self._run([*tensors, *leaves])
            if not self._watch.same():
                self._early = True  # until it is attached anew: the GPU must not work in vain at every call
                return OTHER
        if self._single:
            return outputs[0]
        return restore(self._outputs, iter(outputs))

    def _run(self, tensors: list[Any]) -> list[Any]:
        kind, index = self._device
        if kind == "cuda" and index >= 0 and torch._C._cuda_getDevice() != index:
            with torch.cuda.device(index), self._lock:  # the loader takes the current device's stream
                return self._loader.run(tensors)  # type: ignore[no-any-return]
        with self._lock:
            return self._loader.run(tensors)  # type: ignore[no-any-return]

    def _rebind(self, bound: list[Any], leaves: Any) -> bool:
        """Tensors were replaced: take the new ones, if they are alike and tied as the old ones were."""
        tensors: list[Any] = [None] * len(self._tensors)
        for number, tensor in zip(self._numbers, bound, strict=True):
            if tensors[number] is None:
                tensors[number] = tensor
            elif tensors[number] is not tensor:
                return False
        if len({id(tensor) for tensor in tensors}) != len(tensors):
            return False  # what were two are one now
        try:
            if not self._guards.check(*tensors, *leaves):
                return False
        except (TypeError, RuntimeError):
            return False
        rebound = [tensor.__dict__ for tensor in tensors]
        if any(rebound):
            return False  # something hangs on one of them, and the key is to say what
        self._bound, self._tensors, self._rebound = bound, tensors, rebound
        return True

    def _hung_alike(self, leaves: Any) -> bool:
        """Whether the same plain values hang on the inputs, which a forward may read."""
        try:
            return list(map(attributes, leaves)) == (self._hung or [[]] * len(leaves))
        except NotHotError:
            return False

    def _fits(self, leaves: Any) -> bool:
        """Whether the sizes of dynamic dimensions are in range, and equal where they have to be."""
        sizes: dict[str, int] = {}
        for at, dimension, symbol, least, greatest in self._symbols:
            tensor = leaves[at]
            size = tensor.shape[dimension]
            if size < least or (greatest and size > greatest) or sizes.setdefault(symbol, size) != size:
                return False
            if not tensor.is_contiguous():
                return False
        return not self._conditions or hold(self._conditions, sizes)

    def _overlaps(self, tensors: list[Any]) -> bool:
        """Whether a tensor that is written to shares memory with another one, or is not aligned as it was.

        A package writes when it pleases: another input must not see it half-way. A GPU
        package copies what is not aligned, and would write to the copy.
        """
        storages = [tensor.untyped_storage() for tensor in tensors]
        begins = [storage.data_ptr() for storage in storages]
        ends = [begin + storage.nbytes() for begin, storage in zip(begins, storages, strict=True)]
        # By address: memory of others (NumPy's) is in a storage of its own for each tensor made of it.
        return any(
            tensors[at].data_ptr() % 16
            or sum(begin < ends[at] and end > begins[at] for begin, end in zip(begins, ends, strict=True)) > 1
            for at in self._mutated
        )

    @property
    def mutated(self) -> list[int]:
        return self._mutated

    def tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The model's tensors and those of a call, in the order in which ``mutated`` counts them."""
        leaves: list[Any] = []
        flatten((args, kwargs), leaves)
        return [*self._tensors, *leaves]

    def same_model(self, call: Call) -> bool:
        """Whether a call with this package's key can be served by it once it is attached anew."""
        return call.device == self._device and len(call.survey.tensors) == len(self._tensors)


def _pattern(leaves: Any) -> list[int]:
    """Which of the inputs are one and the same tensor: each by the first that it is."""
    numbers = list(map(id, leaves))
    return list(map(numbers.index, numbers))
