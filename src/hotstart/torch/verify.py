"""A package put to the test in a process of its own: ``python -m hotstart.torch.verify FOLDER``.

Loads the package as a hit would and calls it twice, each time with other weights and
inputs, beside the exported program run eagerly. A package that crashes (a compiler that
links what it must not) takes only this process down. Found by the way, and written to
``verified.json``: which inputs are written to. Exit status 0 when everything agrees, 1
with the reason on the last line of stdout when not.
"""

from __future__ import annotations

import json
import sys
from itertools import cycle, product

import torch

from . import state, versions
from .build import die_with_parent
from .compare import difference, no_worse
from .conditions import hold
from .reasons import NotHotError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ROUNDS = (1, 2)
#: By how much a dynamic dimension is longer in the second round: the first that is allowed.
_STEPS = (3, 1, 2, 4, 8, -1, -2, 64, 0)


class Made:
    """Tensors like those of the model and its inputs, made up anew for each round."""

    def __init__(self, job: dict[str, Any], values: dict[str, Any]) -> None:
        self._job = job
        self._values = values
        self.sizes: dict[str, int] = {}

    def tensor(self, at: int, seed: int) -> Any:
        with torch.inference_mode(False), torch.no_grad():  # so that it has a version, which tells who was written to
            return self._tensor(at, seed)

    def _tensor(self, at: int, seed: int) -> Any:
        specification = self._job["tensors"][at]
        shape, stride = self._shape(at, specification, seed)
        kind, index = self._job["device"]
        device = specification["device"] if specification["device"] == "cpu" else f"{kind}:{max(index, 0)}"
        dtype = getattr(torch, specification["dtype"])
        generator = torch.Generator().manual_seed(seed * 100_003 + at)
        value = self._values.get(str(at))
        if value is not None:
            filled = value if list(value.shape) == shape else _spread(value, shape, generator)
        elif "mean" in specification:
            mean, deviation = specification["mean"], specification["deviation"]
            # Another deviation each time: of weights that are all one, too.
            filled = torch.randn(shape, generator=generator) * (deviation or 0.1) * (0.5 + 0.5 * seed) + mean
            if specification["least"] >= 0:
                filled = filled.abs()
        else:
            filled = torch.empty(shape)
        place = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        place.copy_(filled)
        if specification["parameter"]:
            return torch.nn.Parameter(place, requires_grad=specification["requires_grad"])
        return place

    def _shape(self, at: int, specification: dict[str, Any], seed: int) -> tuple[list[int], list[int]]:
        shape = list(specification["shape"])
        first = self._job["model_tensors"]
        dynamic = [row for row in self._job["about"]["symbols"] if row[0] == at - first]
        if not dynamic or seed == _ROUNDS[0]:
            return shape, specification["stride"]
        for _, dimension, symbol, _, _ in dynamic:
            shape[dimension] = self._other_sizes()[symbol]
        return shape, list(torch.empty(shape, device="meta").stride())

    def _other_sizes(self) -> dict[str, int]:
        """Sizes for the second round: other ones than the first had, where ranges and conditions allow it."""
        if self.sizes:
            return self.sizes
        about, first = self._job["about"], self._job["model_tensors"]
        rows = about["symbols"]
        was = {row[2]: self._job["tensors"][first + row[0]]["shape"][row[1]] for row in rows}
        for steps in product(_STEPS, repeat=min(len(was), 3)):
            moved = {name: size + step for (name, size), step in zip(was.items(), cycle(steps), strict=False)}
            inside = all(least <= moved[name] <= (most or moved[name]) for _, _, name, least, most in rows)
            if inside and hold(about["conditions"], moved):
                self.sizes = moved
                return moved
        self.sizes = was
        return was

    def all(self, seed: int) -> list[Any]:
        return [self.tensor(at, seed) for at in range(len(self._job["tensors"]))]


def _spread(value: Any, shape: list[int], generator: Any) -> Any:
    """Integers for another shape, drawn from those that are known to be in range."""
    flat = value.reshape(-1)
    count = 1
    for size in shape:
        count *= size
    return flat[torch.randint(len(flat), (count,), generator=generator)].reshape(shape)


def verify(folder: str) -> dict[str, Any]:
    """What was found. Raises NotHotError with the reason when the package is not to be used."""
    with open(f"{folder}/job.json") as file:
        job = json.load(file)
    state.apply(job["settings"])
    kind, index = job["device"]
    if kind == "cuda":
        torch.cuda.set_device(max(index, 0))
    made = Made(job, torch.load(f"{folder}/values.pt", weights_only=True))
    loader = versions.load(f"{folder}/package.pt2", index)
    module = versions.unlifted(torch.export.load(f"{folder}/program.pt2"))
    mutated: set[int] = set()
    grad = torch.inference_mode if job["settings"]["inference"] else torch.no_grad
    with grad():
        for seed in _ROUNDS:
            mutated |= _round(job, made, loader, module, seed)
    return {"mutated": sorted(mutated)}


def _round(job: dict[str, Any], made: Made, loader: Any, module: Any, seed: int) -> set[int]:
    first = job["model_tensors"]
    tensors = made.all(seed)
    before = [tensor._version for tensor in tensors]
    wanted = module(tensors[:first], tensors[first:])
    _check_aliases(wanted, tensors)
    written = {at for at, tensor in enumerate(tensors) if tensor._version != before[at]}
    results = {at: tensors[at] for at in written}
    for repetition in ("eager", "package"):
        fresh = [made.tensor(at, seed) if at in written else tensor for at, tensor in enumerate(tensors)]
        found = module(fresh[:first], fresh[first:]) if repetition == "eager" else loader.run(fresh)
        if len(found) != len(wanted):
            raise NotHotError(f"the {repetition} gave {len(found)} tensors instead of {len(wanted)}")
        pairs = [(f"result {at}", a, b) for at, (a, b) in enumerate(zip(found, wanted, strict=True))]
        pairs += [(f"what was written to input {at}", fresh[at], results[at]) for at in sorted(written)]
        for what, one, other in pairs:
            reason = difference(one, other, what)
            if reason and repetition == "eager":
                raise NotHotError(f"it gives another result each time ({reason})", "a random result cannot be checked")
            if reason and not (what.startswith("result") and _as_exact(module, made, seed, first, what, one, other)):
                raise NotHotError(f"the package does not compute what eager does: {reason}")
    return written


def _as_exact(module: Any, made: Made, seed: int, first: int, what: str, found: Any, wanted: Any) -> bool:
    """Whether a result of low precision is as good as eager's, by the same program run in float32."""
    if wanted.dtype not in (torch.bfloat16, torch.float16):
        return False
    inputs = [tensor.float() if tensor.dtype == wanted.dtype else tensor for tensor in made.all(seed)]
    try:
        exact = widened(module, wanted.dtype)(inputs[:first], inputs[first:])[int(what.rpartition(" ")[2])]
    except Exception as error:
        print(f"it cannot be run in float32 ({type(error).__name__})", file=sys.stderr)
        return False  # an operator that has no other precision
    return no_worse(found, wanted, exact)


def widened(module: Any, low: Any) -> Any:
    """The same program with float32 for ``low``, also where it names that dtype, as a norm does that casts back."""
    from copy import deepcopy

    from torch.fx.node import map_aggregate

    def wide(value: Any) -> Any:
        return torch.float32 if value is low else value

    changed = deepcopy(module)
    for node in list(changed.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            changed.graph.erase_node(node)  # it asserts the very dtype that is changed here
            continue
        node.args, node.kwargs = map_aggregate(node.args, wide), map_aggregate(node.kwargs, wide)
    changed.recompile()
    return changed._apply(lambda tensor: tensor.float() if tensor.dtype is low else tensor)


def _check_aliases(outputs: list[Any], inputs: list[Any]) -> None:
    """A result that shares memory with an input or another result means something that a package does not keep."""
    places = {tensor.untyped_storage().data_ptr() for tensor in inputs if tensor.numel()}
    seen: set[int] = set()
    for tensor in outputs:
        place = tensor.untyped_storage().data_ptr()
        if not tensor.numel():
            continue
        if place in places:
            raise NotHotError("the result is, or is a view of, an input or weight", "return a copy of it")
        if place in seen:
            raise NotHotError("two tensors of the result share their memory", "return a copy of one")
        seen.add(place)


def main(folder: str) -> int:
    try:
        found = verify(folder)
    except NotHotError as error:
        print(error)
        return 1
    except Exception as error:
        lines = str(error).splitlines()
        print(f"{type(error).__name__}: {lines[0] if lines else ''}")
        return 1
    with open(f"{folder}/verified.json", "w") as file:
        json.dump(found, file)
    return 0


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(sys.argv[1]))
