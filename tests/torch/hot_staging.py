"""Packages without AOTInductor: the exported program itself, run eagerly, in the place of what is compiled from it.

Everything around it is real: key, export, hand-over, verification, store, load, and every
check of a call. So what a hit may serve can be tried on many models, each in half a
second; that a compiled package computes what the program does is for other tests.
"""

from __future__ import annotations

import json
import os
import shutil
from base64 import b64decode
from typing import TYPE_CHECKING, Any

import hotstart.torch
from hotstart.keys.key import Key, _restore
from hotstart.torch import jobs, record, state, verify, versions

if TYPE_CHECKING:
    import pytest

    from hotstart.cache import Cache

import torch


class Program:
    """What ``versions.load`` gives for a package that is an exported program."""

    def __init__(self, path: str, device_index: int) -> None:
        program: Any = torch.export.load(path)
        self._module = versions.unlifted(program)
        spec = program.call_spec.in_spec
        arguments = spec.children()[0] if hasattr(spec, "children") else spec.children_specs[0]
        first = arguments.children()[0] if hasattr(arguments, "children") else arguments.children_specs[0]
        self._first = first.num_leaves

    def run(self, tensors: list[Any]) -> list[Any]:
        with torch.no_grad():
            return list(self._module(tensors[: self._first], tensors[self._first :]))


def _start(self: jobs.Job, cache: Cache, wait: bool) -> None:
    """The helper's work, in this process and without the compile."""
    with open(f"{self.folder}/job.json") as file:
        job = json.load(file)
    told = job["key"]
    key = _restore(Key, told["kind"], told["name"], told["digest"], [b64decode(part) for part in told["parts"]])
    shutil.copy(f"{self.folder}/program.pt2", f"{self.folder}/package.pt2")
    try:
        found = verify.verify(self.folder)
        with open(f"{self.folder}/package.pt2", "rb") as file:
            cache.put(key, {"package": file.read()}, meta={"about": json.dumps({**job["about"], **found})})
        record.note("published", key.name, key.digest)
    except hotstart.torch.reasons.NotHotError as error:
        record.note("failed", key.name, key.digest, error.reason, error.advice)
    jobs.finish(self.folder)
    os.close(self.fd)
    self.fd = -1


class Plain:
    """Stands for torch.compile where a test asks whether it was called, not what Inductor makes of it."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.target(*args, **kwargs)


class Stage:
    """``build`` makes the package of a call, ``compiled`` loads it."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    def compiled(self, target: Any, promote: str = "never", **arguments: Any) -> tuple[Any, Plain]:
        made = hotstart.torch.compile(target, cache=self.cache, promote=promote, **arguments)
        plain = made._engine._plain = Plain(target)
        return made, plain

    def build(self, target: Any, *args: Any, compile_arguments: dict[str, Any] | None = None, **kwargs: Any) -> str:
        """The last word on it: "published", or why it is not."""
        made, _ = self.compiled(target, "now", **(compile_arguments or {}))
        made(*args, **kwargs)
        said = hotstart.torch.records()[-1]
        return said["event"] if said["event"] in ("published", "hit") else f"{said['reason']}; {said['advice']}"


def staged(cache: Cache, patch: pytest.MonkeyPatch) -> Stage:
    patch.setattr(versions, "load", Program)
    patch.setattr(jobs.Job, "start", _start)
    patch.setattr(state, "apply", lambda described: None)  # it is this process, and they are set
    return Stage(cache)


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, check_stride=False)
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
