"""``fingerprint``: a function together with everything it calls, closes over and reads.

The user's own code counts by content, however deep; installed distributions and
the standard library by their identity. What a fingerprint says is what the
function would do if it were called now: globals are looked at on every call, only
what cannot change (bytecode, distributions) is remembered.

It holds for one version of Python. Bytecode is what runs and source may be gone or
newer, so bytecode is hashed, and that changes with every minor version. Nothing is
lost by it: built-ins and the standard library, which every function uses, differ
between versions too.

Not in it, because they are not code: arguments, which the key carries, and what a
library's function reads on its own account. What reads files, the clock, random
numbers or the machine through the standard library is refused.
"""

from __future__ import annotations

from ...errors import UsageError
from . import distributions
from . import handlers as handlers  # these three are loaded for what they teach the walk
from . import methods as methods
from . import objects as objects
from .walk import PLAIN, Walk
from .walk import register as register


def fingerprint(fn: object) -> str:
    """64 hexadecimal digits that change when anything changes that ``fn`` can do.

    ``fn`` is a function, method, ``functools.partial``, class or any callable. The
    digits do not depend on file paths, line numbers, the working directory, the hash
    seed or the machine.

    Raises UncacheableError whose ``field`` is the way to what has no form, such as
    ``f → helper → global LOCK``, and UsageError for what is no code at all. Take it
    when the function is about to be used: names that are not bound yet count as such.
    """
    if type(fn) in PLAIN or isinstance(fn, tuple | list | dict | set):
        raise UsageError(f"a {type(fn).__name__} is data, not code; use hotstart.hash_value")
    distributions.refresh()
    return Walk(fn).digest()


__all__ = ["fingerprint", "register"]
