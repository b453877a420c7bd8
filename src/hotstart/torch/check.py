"""``check=True``: the first result of a package beside eager's, and what becomes of one that is wrong."""

from __future__ import annotations

import os

import torch

from . import marks
from .compare import difference
from .package import OTHER
from .reasons import NotHotError
from .structure import flatten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..cache import Cache
    from ..keys.key import Key
    from .package import Package


def condemn(cache: Cache, key: Key, reason: str) -> None:
    """Move a wrong package aside, as the store does with a damaged one, and see to it that it does not come back.

    It is counted and lies in ``quarantine/``, at most 32 files, for inspection. Built again it
    would be as wrong: so it is not, until the key or the compiler is another one, or the mark
    is a month old. And should a remote store have it still, it is known by its digest.
    """
    entry = cache.get(key)
    if entry is None:
        return  # another process was faster
    marks.fail(marks.folder_of(cache, key), f"a check found the package wrong: {reason}", entry["package"])
    cache._memory.delete(key.digest)
    disk = cache._disk
    if disk is None:
        return
    try:
        identity = os.stat(disk.path(key.digest), follow_symlinks=False)
    except OSError:
        return  # it is in a layer that is not ours to change; the mark keeps it from being served
    disk.found_damaged(key.digest, identity, f"its result is not eager's: {reason}")


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
