"""``check=True``: the first result of a package beside eager's."""

from __future__ import annotations

import torch

from .compare import difference
from .package import OTHER
from .reasons import NotHotError
from .structure import flatten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .package import Package


def verified(target: Any, package: Package, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, str]:
    """The package's result, and why it is not eager's ("" when it is).

    Where the call writes to its inputs, eager runs first and what it wrote is taken
    back, so that only the package's writing stays.
    """
    tensors = package.tensors(args, kwargs)
    before = {at: tensors[at].detach().clone() for at in package.mutated}
    wanted = target(*args, **kwargs)
    written = {at: tensors[at].detach().clone() for at in before}
    with torch.no_grad():
        for at, was in before.items():
            tensors[at].copy_(was)
    made = package(args, kwargs)
    if made is OTHER:
        return OTHER, ""
    ours: list[Any] = []
    theirs: list[Any] = []
    try:
        if flatten(made, ours) != flatten(wanted, theirs):
            return made, "the result has another structure"
    except NotHotError as error:
        return made, str(error)
    pairs = [*zip(ours, theirs, strict=True), *[(tensors[at], written[at]) for at in before]]
    for at, (one, other) in enumerate(pairs):
        reason = difference(one, other, f"tensor {at} of the result")
        if reason:
            return made, reason
    return made, ""
