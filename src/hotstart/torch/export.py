"""A model as an exported program without its weights, and the folder in which a helper finds it.

Every tensor in a slot becomes an input of the program, so there is nothing to strip: no
weight is ever in it. For that the tensors are exchanged, in their slots, for the fake
ones that torch.export traces with, and put back whatever happens.

The folder has ``program.pt2`` (the program), ``job.json`` (the key, the settings and what
the entry is to say) and ``values.pt`` (inputs and buffers of integers, which cannot be
made up: an index has to be in range). It is for the user alone, and it is removed when
the helper has done its work.
"""

from __future__ import annotations

import os

import torch

from .conditions import written
from .key import Call
from .reasons import NotHotError
from .structure import TRACED, flatten, restore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..keys.key import Key
    from .structure import Template

#: Namespaces of operators that every torch of this version has.
_OWN_OPERATORS = frozenset(("aten", "prim", "prims", "higher_order", "inductor"))

#: Tensors with more bytes than this are not copied to the folder; such a program is not packaged.
_VALUES_LIMIT = 64 << 20


class _Lifted(torch.nn.Module):  # type: ignore[misc]
    """The call as torch.export sees it: model's tensors and inputs in, tensors of the result out."""

    def __init__(self, target: Callable[..., Any], call: Call, note: Callable[[Template], None]) -> None:
        super().__init__()
        # In a function: a module among the attributes would be registered, and its weights with it,
        # and torch.export puts attributes back to what they were.
        self._held: Callable[[], tuple[Any, ...]] = lambda: (target, call, note)

    def forward(self, tensors: list[Any], leaves: list[Any]) -> list[Any]:
        target, call, note = self._held()
        by_identity = {id(old): new for old, new in zip(call.survey.tensors, tensors, strict=True)}
        places = [(container, name, container[name]) for container, name in call.survey.slots]
        try:
            for container, name, old in places:
                container[name] = by_identity[id(old)]
            args, kwargs = restore(call.template, iter(leaves))
            made = target(*args, **kwargs)
            replaced = [name for container, name, old in places if container[name] is not by_identity[id(old)]]
        finally:
            for container, name, old in places:
                container[name] = old
        if replaced:
            raise NotHotError(f"forward assigns to {', '.join(map(str, replaced))}", "write to it in place, with copy_")
        found: list[Any] = []
        note(flatten(made, found, TRACED))
        if not found:
            raise NotHotError("the result has no tensor in it")
        return found


def export(target: Callable[..., Any], call: Call) -> tuple[Any, Template, list[list[Any]], list[Any]]:
    """The program, the template of its result, its dynamic dimensions and the conditions on them.

    Raises NotHotError when there is none.
    """
    import torch.export

    outputs: list[Template] = []
    lifted = _Lifted(target, call, outputs.append)
    marks = [dict.fromkeys(marked, torch.export.Dim.AUTO) if marked else None for marked in call.ranges]
    shapes = ([None] * len(call.survey.tensors), marks) if any(marks) else None
    try:
        program = torch.export.export(
            lifted, (list(call.survey.tensors), list(call.leaves)), dynamic_shapes=shapes, strict=False
        )
    except NotHotError:
        raise
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise NotHotError(
            f"torch.export cannot take it ({type(error).__name__}: {first.strip()[:300]})",
            "control flow must not depend on the values of tensors (torch.where and torch.cond may), nor leave torch",
        ) from None
    for node in program.graph.nodes:
        _check_operator(node)
    symbols, conditions = _symbols(program, call)
    return program, outputs[-1], symbols, conditions


def _check_operator(node: Any) -> None:
    if node.op != "call_function":
        return
    namespace = getattr(node.target, "namespace", None)
    if namespace is not None and namespace not in _OWN_OPERATORS:
        raise NotHotError(f"the custom operator {node.target} is called: its implementation cannot be seen")


def writes_to_inputs(node: Any) -> bool:
    """Whether an operation of the program writes to an input, or to what may be a view of one."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return False
    for argument, given in zip(schema.arguments, node.args, strict=False):
        items = given if isinstance(given, list | tuple) else [given]
        if argument.alias_info is not None and argument.alias_info.is_write and any(map(_origin, items)):
            return True
    return bool(node.kwargs)  # an out= argument: rare, and not worth more


def _origin(node: Any) -> bool:
    """Whether a value is an input, or comes from one through operations that may return views."""
    while getattr(node, "op", "") == "call_function":
        schema = getattr(node.target, "_schema", None)
        if schema is not None and not any(given.alias_info for given in schema.returns):
            return False
        node = node.args[0][0] if isinstance(node.args[0], list | tuple) else node.args[0]  # or an item of a tuple
    return getattr(node, "op", "") in ("placeholder", "get_attr")


def _symbols(program: Any, call: Call) -> tuple[list[list[Any]], list[Any]]:
    """For each dynamic dimension: input, dimension, name, least and greatest size (0: no limit); and conditions."""
    if not any(call.ranges):
        return [], []
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"][-len(call.leaves) :]
    ranges = {str(symbol): value for symbol, value in program.range_constraints.items()}
    found: list[list[Any]] = []
    environment: Any = None
    for at, (node, marked) in enumerate(zip(nodes, call.ranges, strict=True)):
        for dimension, (least, greatest) in marked.items():
            size = node.meta["val"].shape[dimension]
            if isinstance(size, int):
                if not call.every_dimension:
                    raise NotHotError(
                        f"dimension {dimension} of input {at} is marked as dynamic, "
                        f"but the program holds for {size} only",
                        "do not mark it, or see what in the model fixes it",
                    )
                found.append([at, dimension, f"{at}.{dimension}", size, size])
                continue
            environment = size.node.shape_env
            allowed = ranges.get(str(size))
            if allowed is None:
                raise NotHotError(f"the sizes that dimension {dimension} of input {at} may have are not a range")
            lower = max(least, _finite(allowed.lower, 0))
            upper = min(greatest or _HUGE, _finite(allowed.upper, _HUGE))
            found.append([at, dimension, str(size), lower, 0 if upper >= _HUGE else upper])
    return found, _conditions(environment)


def _conditions(environment: Any) -> list[Any]:
    """What torch took for granted about sizes while it traced, as far as names and ranges do not say it."""
    if environment is None:
        return []
    found: list[Any] = []
    for guard in environment.guards:
        expression = environment.replace(guard.expr)
        if str(expression) != "True":
            condition = written(expression)
            if condition not in found:
                found.append(condition)
    return found


_HUGE = 1 << 40


def _finite(bound: Any, otherwise: int) -> int:
    text = str(bound)  # sympy's, whose infinities raise different errors in different releases
    return int(text) if text.isdigit() else otherwise


def hand_over(folder: str, program: Any, key: Key, call: Call, about: dict[str, Any]) -> None:
    """Write the folder; ``job.json``, written last and renamed into place, makes it complete. Raises OSError."""
    import json
    from base64 import b64encode

    tensors = [*call.survey.tensors, *call.leaves]
    specifications, values = _specify(tensors)
    job = {
        "key": {
            "kind": key.kind,
            "name": key.name,
            "digest": key.digest,
            "parts": [b64encode(part).decode() for part in key._parts],
        },
        "about": about,
        "device": list(call.device),
        "settings": call.settings,
        "options": call.options,
        "model_tensors": len(call.survey.tensors),
        "tensors": specifications,
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
    }
    os.makedirs(folder, mode=0o700, exist_ok=True)
    program._example_inputs = None  # the weights would be among them
    torch.export.save(program, f"{folder}/program.pt2")
    torch.save(values, f"{folder}/values.pt")
    with open(f"{folder}/job.json.tmp", "w") as file:
        json.dump(job, file)
    os.replace(f"{folder}/job.json.tmp", f"{folder}/job.json")


def _specify(tensors: list[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """How to make up a tensor like each of these: floats from mean and deviation, everything else by value."""
    specifications, values = [], {}
    size = 0
    floats = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    measured = {id(tensor): at for at, tensor in enumerate(floats)}
    numbers = _measure(floats)
    for at, tensor in enumerate(tensors):
        specification: dict[str, Any] = {
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "device": tensor.device.type,
            "parameter": isinstance(tensor, torch.nn.Parameter),
            "requires_grad": tensor.requires_grad,
        }
        found = numbers[measured[id(tensor)]] if id(tensor) in measured else None
        if found is not None and all(number == number and abs(number) < 1e30 for number in found):
            specification["mean"], specification["deviation"], specification["least"] = found
        elif tensor.numel():
            size += tensor.numel() * tensor.element_size()
            if size > _VALUES_LIMIT:
                raise NotHotError("more than 64 MiB of its tensors cannot be made up for a test of the package")
            values[str(at)] = tensor.detach().cpu().contiguous()
        specifications.append(specification)
    return specifications, values


def _measure(floats: list[Any]) -> list[list[float]]:
    """Mean, deviation and least element of each, with one wait for the device and not three for each."""
    if not floats:
        return []
    rows = []
    with torch.no_grad():
        for tensor in floats:
            wide = tensor.detach().float()
            rows.append(torch.stack((wide.mean(), wide.std(correction=0), wide.min())))
        device = max((row.device for row in rows), key=lambda device: device.type != "cpu")
        return torch.stack([row.to(device) for row in rows]).tolist()  # type: ignore[no-any-return]
