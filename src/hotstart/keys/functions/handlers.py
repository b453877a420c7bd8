"""What counts of objects whose state cannot be read in the ordinary way, type by type.

Each line here is a claim that nothing left out can change a result. Types are
named, not imported: an object of a library that was never loaded cannot turn up.
"""

from __future__ import annotations

import sys

from ...errors import UncacheableError
from ..tensors import array_content
from .walk import register

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _attributes(*names: str) -> Any:
    def handler(value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in names}

    return handler


def _optional(*names: str) -> Any:
    """Attributes that come and go between releases of a library."""

    def handler(value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in names if hasattr(value, name)}

    return handler


def _reduced(value: Any) -> Any:
    """Types of the standard library whose ``__reduce__`` is the call that makes an equal object."""
    made = value.__reduce__()
    if isinstance(made, str):
        raise UncacheableError("is known by name only")
    return made[1:]


def _logger(value: Any) -> dict[str, Any]:
    """What a logger answers its caller depends on these; where it writes to is nobody's input."""
    return {
        "name": value.name,
        "level": value.getEffectiveLevel(),
        "disabled": (value.disabled, value.manager.disable),
    }


def _partial(value: Any) -> dict[str, Any]:
    return {"function": value.func, "arguments": value.args, "keywords": value.keywords, "attributes": vars(value)}


def _cached(value: Any) -> dict[str, Any]:
    return {"function": value.__wrapped__, "parameters": value.cache_parameters(), "attributes": vars(value)}


def _ordered(value: Any) -> Any:
    return list(value.items()), vars(value)


def _default(value: Any) -> Any:
    return value.default_factory, list(value.items())


def _torch_operator(value: Any) -> str:
    name = str(getattr(value, "_qualified_op_name", None) or value.name())
    if name.partition("::")[0] not in ("aten", "prim", "prims"):
        raise UncacheableError(f"the implementation of the custom operator {name} cannot be seen")
    return f"{name}.{getattr(value, '_overloadname', '')}"


def _sympy(value: Any) -> Any:
    """An expression without the hash it remembers, which differs between processes."""
    if value.args:
        return value.args
    if not type(value).__module__.startswith("sympy."):
        raise UncacheableError("an atom of one's own class may hold more than sympy prints")
    return sys.modules["sympy"].srepr(value)


def _open_file(value: Any) -> object:
    if value is sys.stdout or value is sys.stderr:
        return "stream"  # what is printed is no input
    raise UncacheableError("an open file cannot be fingerprinted; put what is read from it into the key")


def _environment(value: Any) -> object:
    raise UncacheableError("the whole environment is used; read the variables that matter by constant names")


def _shared_library(value: Any) -> object:
    raise UncacheableError("a library loaded through ctypes is code that cannot be seen")


def _generation(value: Any) -> dict[str, Any]:
    """Without the hash of its own text by which it sees whether it was changed, different in every process."""
    return {name: item for name, item in vars(value).items() if name != "_original_object_hash"}


def _as_text(value: Any) -> str:
    return str(value)


for _name, _handler in {
    "functools.partial": _partial,
    "functools._lru_cache_wrapper": _cached,
    "functools.cached_property": _attributes("func", "attrname"),
    "functools.singledispatchmethod": _attributes("dispatcher", "func"),
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _default,
    "collections.deque": lambda value: (value.maxlen, list(value)),
    "collections._tuplegetter": _reduced,
    "_collections._tuplegetter": _reduced,  # until 3.11
    "types.SimpleNamespace": lambda value: dict(vars(value)),
    "builtins.BaseException": lambda value: (value.args, vars(value), value.__cause__),
    "re.Pattern": _attributes("pattern", "flags"),
    "operator.itemgetter": _reduced,
    "operator.attrgetter": _reduced,
    "operator.methodcaller": _reduced,
    "datetime.date": _reduced,
    "datetime.time": _reduced,
    "datetime.timedelta": _reduced,
    "datetime.timezone": lambda value: value.__getinitargs__(),
    "decimal.Decimal": _as_text,
    "array.array": lambda value: (value.typecode, value.tobytes()),
    "_struct.Struct": _attributes("format"),
    "logging.Logger": _logger,
    "_io._IOBase": _open_file,
    "os._Environ": _environment,
    "ctypes.CDLL": _shared_library,
    # Typing: what an annotation says, not the caches of the objects that say it.
    "typing._SpecialForm": _optional("_name"),
    "typing._BaseGenericAlias": _optional("_name", "__origin__", "__args__", "__metadata__"),
    "types.GenericAlias": _attributes("__origin__", "__args__"),
    "types.UnionType": _attributes("__args__"),
    "typing.TypeVar": _optional("__name__", "__bound__", "__constraints__", "__covariant__", "__contravariant__"),
    "typing.ParamSpec": _optional("__name__", "__bound__"),
    "typing.TypeVarTuple": _optional("__name__"),
    "typing.ForwardRef": _optional("__forward_arg__"),
    # Arrays by content; their own digest, so that a large one is read once.
    "numpy.ndarray": array_content,
    "torch.Tensor": array_content,
    "torch.device": _as_text,
    "torch.layout": _as_text,
    "torch.memory_format": _as_text,
    "torch.qscheme": _as_text,
    "torch._ops.OpOverloadPacket": _torch_operator,
    "torch._ops.OpOverload": _torch_operator,
    "sympy.core.basic.Basic": _sympy,
    "transformers.generation.configuration_utils.GenerationConfig": _generation,
    # Triton compiles the text it took when the function was decorated.
    "triton.runtime.jit.JITCallable": _optional(
        *("fn", "src", "version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline"),
        *("_repr", "launch_metadata", "pre_run_hooks"),
    ),
    "triton.runtime.autotuner.Autotuner": _optional(
        *("fn", "configs", "keys", "arg_names", "reset_to_zero", "restore_value", "perf_model", "configs_top_k"),
        *("early_config_prune", "user_defined_pre_hook", "user_defined_post_hook", "pre_hook", "post_hook"),
    ),
    "triton.runtime.autotuner.Heuristics": _optional("fn", "values", "arg_names"),
}.items():
    register(_name, _handler)
