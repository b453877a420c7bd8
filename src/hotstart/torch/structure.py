"""Arguments and results as a template and a list of tensors, and back.

torch's pytrees know only classes that were registered with them, and a registration
changes what every other user of pytrees in the process sees. Here dataclasses, named
tuples and dictionaries with fields (the outputs of transformers) are taken apart
without. A template is nested tuples of plain data: it compares, it goes into a key,
and as JSON into an entry.

    ("t",)                                 the next tensor
    ("c", type, text)                      a constant, by value: None, bool, int, float, str, dtype, device
    ("(" | "[" | "size", parts…)           tuple, list, torch.Size
    ("{", (key…), parts…)                  dict, in its order
    (class kind, module, name, (field…), parts…)   an object of a class that is looked up again
"""

from __future__ import annotations

import sys

import torch

from .reasons import NotHotError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Template = tuple[Any, ...]

TENSOR: Template = ("t",)

#: What is taken apart while torch.export traces: its tensors are stand-ins.
TRACED = "the result"

#: Tensors that are nothing but their content and metadata; a subclass may do anything.
PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer))

_DATACLASS, _NAMED_TUPLE, _FIELDS = "dataclass", "namedtuple", "fields"
_MAX_DEPTH = 32


def flatten(value: Any, leaves: list[Any], what: str = "an argument", depth: int = 0) -> Template:
    """The template of ``value``; its tensors are appended to ``leaves``.

    Raises NotHotError for an object that is not plain data: what it does when it is
    used cannot be told from here.
    """
    if isinstance(value, torch.Tensor):
        if type(value) not in PLAIN_TENSORS and what != TRACED:
            raise NotHotError(f"{what} is a {type(value).__qualname__}, which is more than a tensor")
        leaves.append(value)
        return TENSOR
    kind = type(value)
    constant = _CONSTANTS.get(kind)
    if constant is not None:
        return ("c", kind.__name__, constant(value))
    if depth > _MAX_DEPTH:
        raise NotHotError(f"{what} is nested more than {_MAX_DEPTH} deep")
    opening = _SEQUENCES.get(kind)
    if opening is not None:
        return (opening, *[flatten(item, leaves, what, depth + 1) for item in value])
    if kind is dict:
        if not all(type(key) in (str, int) for key in value):  # True == 1: templates could not tell them apart
            raise NotHotError(f"{what} is a dict whose keys are not strings or numbers")
        return ("{", tuple(value), *[flatten(item, leaves, what, depth + 1) for item in value.values()])
    return _object(value, leaves, what, depth)


def _object(value: Any, leaves: list[Any], what: str, depth: int) -> Template:
    kind = type(value)
    fields = tuple(getattr(kind, "__dataclass_fields__", ()))
    if isinstance(value, dict) and fields:
        style = _FIELDS  # transformers.ModelOutput: a dataclass that is also a dict of what is not None
        held = [getattr(value, name) for name in fields]
        complete = list(value) == [name for name, item in zip(fields, held, strict=True) if item is not None]
    elif isinstance(value, tuple) and hasattr(kind, "_fields"):
        style, fields, held = _NAMED_TUPLE, kind._fields, list(value)
        complete = len(held) == len(fields) and not getattr(value, "__dict__", None)
    elif fields and not isinstance(value, dict | list | tuple | set):
        style = _DATACLASS
        held = [getattr(value, name, None) for name in fields]
        complete = set(getattr(value, "__dict__", fields)) <= set(fields)
    else:
        raise NotHotError(
            f"{what} is a {kind.__module__}.{kind.__qualname__}",
            "pass tensors, numbers, strings, or tuples, lists, dicts and dataclasses of them",
        )
    if not complete or _find(kind.__module__, kind.__qualname__) is not kind:
        raise NotHotError(f"{what} is a {kind.__qualname__} that cannot be put together again from its fields")
    parts = [flatten(item, leaves, what, depth + 1) for item in held]
    return (style, kind.__module__, kind.__qualname__, fields, *parts)


def restore(template: Template, leaves: Iterator[Any]) -> Any:
    """What ``flatten`` took apart, with these tensors instead of its own. Raises NotHotError if a class is gone."""
    tag = template[0]
    if tag == "t":
        return next(leaves)
    if tag == "c":
        return _VALUES[template[1]](template[2])
    if tag == "(":
        return tuple([restore(part, leaves) for part in template[1:]])
    if tag == "[":
        return [restore(part, leaves) for part in template[1:]]
    if tag == "{":
        return {key: restore(part, leaves) for key, part in zip(template[1], template[2:], strict=True)}
    if tag == "size":
        return torch.Size([restore(part, leaves) for part in template[1:]])
    kind = _find(template[1], template[2])
    if kind is None:
        raise NotHotError(f"the class {template[1]}.{template[2]} of a result is not there")
    held = [restore(part, leaves) for part in template[4:]]
    if tag == _NAMED_TUPLE:
        return kind(*held)
    if tag == _FIELDS:
        return kind(**{name: item for name, item in zip(template[3], held, strict=True) if item is not None})
    made = object.__new__(kind)
    for name, item in zip(template[3], held, strict=True):
        object.__setattr__(made, name, item)  # past __init__ and frozen: the fields are all there is to it
    return made


def classes(template: Template) -> list[Any]:
    """The classes of the objects in a template: their code counts."""
    tag = template[0]
    found = []
    if tag in (_DATACLASS, _NAMED_TUPLE, _FIELDS):
        found.append(_find(template[1], template[2]))
    for part in () if tag in ("t", "c") else template[_FIRST_PART.get(tag, 4) :]:
        found += classes(part)
    return [kind for kind in found if kind is not None]


def as_json(template: Template) -> Any:
    """For ``json.dumps``; ``from_json`` is the way back."""
    return [as_json(part) if isinstance(part, tuple) else part for part in template]


def from_json(value: Any) -> Template:
    return tuple([from_json(part) if isinstance(part, list) else part for part in value])


def _find(module: str, name: str) -> Any:
    """A class of a module that is loaded. Nothing is imported: an entry must not choose what runs."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


_SEQUENCES = {tuple: "(", list: "[", torch.Size: "size"}
#: Where in a template its parts begin; in those of objects after class and fields.
_FIRST_PART = {"(": 1, "[": 1, "size": 1, "{": 2}
#: As text, so that 1, 1.0 and True are three constants, and 0.0 and -0.0 two.
_CONSTANTS: dict[type, Any] = {
    type(None): lambda value: "",
    bool: str,
    int: str,
    float: float.hex,
    str: str,
    torch.dtype: str,
    torch.device: str,
}
_VALUES: dict[str, Any] = {
    "NoneType": lambda text: None,
    "bool": lambda text: text == "True",
    "int": int,
    "float": float.fromhex,
    "str": str,
    "dtype": lambda text: getattr(torch, text.removeprefix("torch.")),
    "device": torch.device,
}
