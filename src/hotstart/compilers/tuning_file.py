"""Tuning results as a JSON file: written whole, read as a whole or refused in one line."""

from __future__ import annotations

import json
import os

from ..errors import UsageError
from ..store import files
from .timings import SCHEMA, Timings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

#: How a tuning file says that it is one.
_WHAT = "tuning"


def dump(results: Iterable[Timings]) -> str:
    head = {"hotstart": _WHAT, "schema": SCHEMA}
    return (
        json.dumps({**head, "results": [timings.exported() for timings in results]}, indent=1, allow_nan=False) + "\n"
    )


def load(text: str, source: str) -> list[Timings]:
    """The results in ``text``. Raises UsageError; ``source`` says in it where the text comes from."""
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not a tuning file: {error}; nothing was imported") from None
    if not isinstance(data, dict) or data.get("hotstart") != _WHAT:
        raise UsageError(f"{source} is not a tuning file of hotstart; nothing was imported")
    if type(data.get("schema")) is not int or data["schema"] != SCHEMA:
        raise UsageError(
            f"{source} is a tuning file of schema {data.get('schema')!r}, this hotstart reads schema {SCHEMA}; "
            "nothing was imported, what is stored stays"
        )
    found = data.get("results")
    if not isinstance(found, list):
        raise UsageError(f"{source}: results is a list; nothing was imported")
    results = []
    for number, result in enumerate(found):
        try:
            results.append(Timings.imported(result))
        except (ValueError, TypeError) as error:
            raise UsageError(f"{source}: result {number}: {error}; nothing was imported") from None
    return results


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def read(path: str) -> str:
    """Raises OSError when there is no such file, UsageError when it is no text."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a tuning file: it is not text; nothing was imported") from None


def write(path: str, text: str) -> None:
    """Beside it first, then renamed: whoever reads meanwhile finds the old file or the new.

    Raises OSError about ``path``, whichever step failed.
    """
    directory = os.path.dirname(os.path.abspath(path))
    temporary = os.path.join(directory, f".{files.unique_name()}.json")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise type(error)(error.errno, error.strerror, path) from None
        raise
