"""From a miss to a helper at work: what this process does, and when it does not."""

from __future__ import annotations

import os

import torch

from ..log import say
from . import jobs, record, versions
from .compare import difference
from .export import export, hand_over, writes_to_inputs
from .key import Call
from .reasons import NotHotError
from .structure import as_json, flatten
from .versions import changed_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..cache import Cache
    from ..keys.key import Key
    from .engine import Engine
    from .structure import Template


def redirect() -> None:
    """Let torch.compile keep its caches under hotstart's home, unless somebody has said where."""
    from ..compilers.frameworks import environment

    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        root = os.path.dirname(record.directory()) + "/frameworks"
        for name, value in environment(root, ("torch", "triton")).items():
            if name.endswith("_DIR"):
                os.environ.setdefault(name, value)


class Wanted:
    """A call that missed, and whose package is to be built."""

    __slots__ = ("_args", "_cache", "_call", "_engine", "_key", "_kwargs")

    def __init__(
        self, engine: Engine, cache: Cache, key: Key, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._engine = engine
        self._cache = cache
        self._key = key
        self._call = call
        self._args = args
        self._kwargs = kwargs

    def refused(self, error: NotHotError) -> None:
        name = self._engine.name
        record.note("plain", name, self._key.digest, error.reason, error.advice)
        say("warning", f"{name} will not start hot: {error}", once=f"cold {name} {error}")

    def promote(self, wait: bool) -> bool:
        """Export, hand over, start the helper; whether it could be. Never raises: it runs behind somebody's call."""
        name, digest = self._engine.name, self._key.digest
        if self._cache._arguments.get("read_only"):
            record.note("skipped", name, digest, "the store is read-only")
            return False
        job = jobs.claim(self._cache, self._key)
        if isinstance(job, str):
            record.note("skipped", name, digest, job)
            return False
        settings = self._call.settings
        try:
            # As it was at the call: at exit the caller's contexts have been left.
            with torch.inference_mode(bool(settings["inference"])), torch.set_grad_enabled(bool(settings["grad"])):
                return self._with(job, wait)
        except NotHotError as error:
            self.refused(error)
        except Exception as error:
            record.note("failed", name, digest, f"{type(error).__name__}: {error}"[:500])
            say("info", f"{name}: no package can be made of it: {error!r}")
        finally:
            job.release()
        return False

    def _with(self, job: jobs.Job, wait: bool) -> bool:
        engine, cache, key = self._engine, self._cache, self._key
        if key in cache:
            return True  # another process has built it since we looked
        call = self._again()
        self._check_unchanged(call, "the first call")
        tensors = [*call.survey.tensors, *call.leaves]
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        short = jobs.short_of_memory(size, call.device)
        if short:
            record.note("skipped", engine.name, key.digest, short)
            return False
        with engine.gate:
            engine.gate.wait_for(lambda: engine.active == 0)
            program, outputs, symbols, conditions = export(engine.target, call)
        self._check_unchanged(self._again(), "tracing it")
        self._check_result(program, outputs, call)
        about = {
            "outputs": as_json(outputs),
            "symbols": symbols,
            "conditions": conditions,
            "config": changed_settings(),
            "mutated": [],
        }
        hand_over(job.folder, program, key, call, about)
        record.note("handed", engine.name, key.digest)
        job.start(cache, wait)
        return True

    def _again(self) -> Call:
        engine = self._engine
        return Call(engine.target, self._args, self._kwargs, engine.arguments, after_a_call=True)

    def _check_result(self, program: Any, outputs: Template, call: Call) -> None:
        """Run the program beside the model, once: a model may do other things while it is traced.

        ``type(x) is torch.Tensor`` is false then, ``torch.compiler.is_exporting()`` true. Not
        where it writes to its inputs, which would be written to twice.
        """
        if any(writes_to_inputs(node) for node in program.graph.nodes):
            return
        kind, index = call.device
        found: list[Any] = []
        with torch.random.fork_rng([index] if kind == "cuda" else [], device_type=kind if kind != "cpu" else "cuda"):
            made = versions.unlifted(program)(list(call.survey.tensors), list(call.leaves))
            wanted = self._engine.target(*self._args, **self._kwargs)
        same = flatten(wanted, found) == outputs and len(made) == len(found)
        reason = "" if same else "its structure is another"
        for one, other in zip(made, found, strict=False):
            # Of strides eager's own fast paths have others, and torch.compile decides for itself.
            reason = reason or difference(one.contiguous(), other.contiguous())
        if reason:
            raise NotHotError(
                f"the model does something else when it is traced ({reason})",
                "it must not ask whether it is compiled or exported, nor for the type of a tensor, nor be random",
            )

    def _check_unchanged(self, call: Call, what: str) -> None:
        """A call that changes Python's side of the model is more than a function of tensors."""
        if call.survey.digits != self._call.survey.digits:
            raise NotHotError(
                f"{what} changed attributes of the model, or something else that it reads",
                "keep what changes in buffers, written to in place",
            )
        if call.key().digest != self._key.digest:
            raise NotHotError("torch's settings, or the inputs, changed during the first call")
