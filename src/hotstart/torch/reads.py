"""What a model reads that is neither its code and attributes nor the content of tensors.

A trace runs Python once, so whatever a forward asks the process, the machine or a tensor
about becomes a constant of the program. What can be keyed is; the rest is refused, with
the name of the function that asks. Only the user's own code is looked at: what libraries
ask on their own account is torch's settings, which are in the key.
"""

from __future__ import annotations

import sys
from functools import _lru_cache_wrapper
from types import FunctionType, ModuleType

from ..keys.functions import installed
from ..keys.functions.bytecode import facts_of
from .reasons import NotHotError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .survey import Survey

#: Of a tensor, what no check of a call compares and what two equal tensors may differ in.
_OF_TENSORS = frozenset(
    (
        *("storage_offset", "_version", "is_inference", "_is_view", "_base", "is_leaf", "grad", "grad_fn"),
        *("retains_grad", "output_nr", "is_shared", "is_pinned", "_cdata", "data_ptr", "untyped_storage"),
    )
)
#: Of a process: other ones answer otherwise. By module and name, so that nothing is imported for them.
_OF_PROCESSES: dict[str, str] = {
    "builtins": "id hash",
    "os": "getpid getppid getuid getgid getlogin times getloadavg",
    "posix": "getpid getppid getuid getgid getlogin times getloadavg",
    "sys": "getrecursionlimit getrefcount getsizeof getallocatedblocks",
    "threading": "get_ident get_native_id current_thread active_count",
    "_thread": "get_ident get_native_id",
    "logging": "getLogger",
    "torch": "initial_seed seed get_rng_state",
    "torch.random": "initial_seed seed get_rng_state",
    "torch.cuda": "current_device memory_allocated mem_get_info memory_reserved current_stream initial_seed",
    "torch.distributed": "get_rank get_group_rank get_global_rank get_world_size get_backend get_node_local_rank",
    "torch.distributed.distributed_c10d": "get_rank get_group_rank get_global_rank get_world_size get_backend",
}
_DOORS = {module: frozenset(names.split()) for module, names in _OF_PROCESSES.items()}
#: Asked without arguments, and answered with a word or number that can be in the key.
_ASKED: dict[str, str] = {
    "torch.cuda": "is_available device_count is_initialized",
    "torch.distributed": "is_initialized is_available",
    "torch.distributed.distributed_c10d": "is_initialized is_available",
}
_ANSWERED = {module: frozenset(names.split()) for module, names in _ASKED.items()}


def check(survey: Survey, *, after_a_call: bool) -> list[tuple[str, Callable[[], object]]]:
    """What is asked and can be keyed. Raises NotHotError for what cannot.

    ``after_a_call``: caches of functions have been filled by the call whose key was made before.
    """
    asked: dict[str, Callable[[], object]] = {}
    refused: list[tuple[int, str, str]] = []
    for number, (_, value) in enumerate(survey.nodes):
        if isinstance(value, _lru_cache_wrapper):
            if not after_a_call and value.cache_info().currsize:
                name = getattr(value, "__qualname__", "a function")
                refused.append((number, f"{name} has results cached, and what they were made from is not known", ""))
            continue
        if type(value) is not FunctionType or installed.distribution_of(value) is not None:
            continue
        facts = facts_of(value.__code__)
        read = facts.attributes & _OF_TENSORS
        if read:
            refused.append((number, f"{value.__qualname__} reads {', '.join(sorted(read))} of something", _ELSEWHERE))
        for name, found in _resolved(value, facts.refs):
            module = getattr(found, "__module__", None) or ""
            short = getattr(found, "__name__", "")
            if short in _DOORS.get(module, ()):
                refused.append((number, f"{value.__qualname__} asks {name}", "keep the answer in an attribute"))
            elif short in _ANSWERED.get(module, ()):
                asked[f"{module}.{short}"] = found
    if refused:
        _judge(survey, refused)
    return sorted(asked.items())


_ELSEWHERE = "a package cannot tell tensors apart by it; do that outside of the model"


def _judge(survey: Survey, refused: list[tuple[int, str, str]]) -> None:
    """Raise for the first that code can run into."""
    live = survey._live()
    for number, reason, advice in refused:
        if live is None or number in live[0]:
            raise NotHotError(reason, advice or "call its cache_clear() before the first call")


def _resolved(function: FunctionType, refs: Any) -> Iterator[tuple[str, Any]]:
    """The functions that the names in a code object stand for, found in dictionaries alone."""
    for root, chain, label in refs:
        if isinstance(root, str):
            value = function.__globals__.get(root)
            if value is None:
                value = vars(sys.modules["builtins"]).get(root)
        else:
            value = sys.modules.get(root[1].partition(".")[0] if root[3] else root[1])
        for name in chain:
            if not isinstance(value, ModuleType):
                break
            value = vars(value).get(name)
        if callable(value):
            yield label, value


def orders(survey: Survey) -> list[list[int]]:
    """The order of sets of numbers, which a loop sees and which depends on how they were filled.

    Of sets of strings it is another in every process, so nothing can be made of it.
    """
    return [
        list(value)
        for _, value in survey.nodes
        if type(value) is set and len(value) > 1 and all(type(item) is int for item in value)
    ]
