"""What a tuning is about: the configurations to choose from, the kernel and its arguments, as plain data."""

from __future__ import annotations

from ..errors import UncacheableError, UsageError
from ..keys.digest import digest_of, encode
from .timings import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


class Space:
    """A set of configurations, in any order: a list of them, or a mapping of choices for each name.

    A configuration is a dict (order-free), any other plain data, or a
    ``triton.Config``. Values count exactly: 64 and 64.0 are two. Wherever a space is
    taken a list or mapping is too; made once, it need not be examined at each call.
    Raises UsageError when it is empty or no space, UncacheableError for what has no form.
    """

    __slots__ = ("configs", "data", "digest", "numbers")

    def __init__(self, configs: Iterable[Any] | Mapping[str, Iterable[Any]]) -> None:
        if isinstance(configs, (str, bytes)) or not hasattr(configs, "__iter__"):
            raise UsageError(f"a space is a list of configurations or a mapping of choices, not {configs!r}")
        rows = _product(configs) if hasattr(configs, "keys") else list(configs)
        found = {encode(data): (config, data) for config in rows for data in [_config_data(config)]}
        if not found:
            raise UsageError("a space without configurations has no best one")
        #: The configurations as they were given, in the order of their encodings.
        self.configs = [found[raw][0] for raw in sorted(found)]
        self.data = [found[raw][1] for raw in sorted(found)]
        self.digest = space_digest(self.data)
        self.numbers = {raw: number for number, raw in enumerate(sorted(found))}

    def number(self, config: Any) -> int:
        """Which one it is. Raises UsageError when it is none of them."""
        number = self.numbers.get(encode(_config_data(config)))
        if number is None:
            raise UsageError(f"{config!r} is not in the space")
        return number

    def __len__(self) -> int:
        return len(self.configs)


def space_digest(data: list[Any]) -> str:
    """What stands for a space in a key; ``data`` are its configurations in the order of their encodings."""
    return digest_of(encode(data))


def _product(choices: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{}] if len(choices) else []
    for name in choices:
        values = choices[name]
        if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
            raise UsageError(f"the choices for {name!r} are a list, not {values!r}")
        options = list(values)
        rows = [{**row, name: value} for row in rows for value in options]
    return rows


def _config_data(config: Any) -> Any:
    try:
        return plain(config)
    except UncacheableError:
        if not hasattr(config, "all_kwargs"):
            raise
    # A triton.Config: what is passed on, a hook by what it does, a file by what is in it.
    data = dict(config.all_kwargs())
    override = data.get("ir_override")
    if override is not None:
        with open(override, "rb") as file:
            data["ir_override"] = digest_of(file.read())
    if getattr(config, "pre_hook", None) is not None:
        data["pre_hook"] = coded(config.pre_hook)
    return plain(data)


def coded(value: object) -> object:
    """A function, or a compiled one of a kernel language, by its fingerprint; anything else as it is."""
    if callable(value) and not hasattr(type(value), "__hotstart_key__"):
        from ..keys.functions import fingerprint

        return fingerprint(value)
    return value


def signature(arguments: object) -> Any:
    try:
        return plain(arguments)
    except UncacheableError:
        from ..keys.tensors import tensor_signature

        return plain(tensor_signature(arguments))
