"""``memoize_handle``: a function that makes launchers, made to make each of them once."""

from __future__ import annotations

import functools
from itertools import count
from types import MethodType

from ..errors import UncacheableError, UsageError
from ..keys.functions.walk import register
from ..log import say
from .handles import DEFAULT_ENTRIES, HandleCache
from .tokens import token_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature
    from typing import Any, ParamSpec, TypeVar, overload

    P = ParamSpec("P")
    R = TypeVar("R")

#: What a call returns is not a handle: coroutines and generators can be used once.
_ONE_SHOT = 0x20 | 0x80 | 0x100 | 0x200
_VARIADIC = 0x04 | 0x08

#: Two functions that share a cache never share a key.
_serial = count()


class Memoized:
    """A function with its handles. Made by ``memoize_handle``; called like the function itself.

    ``cache`` is the HandleCache behind it, ``__wrapped__`` the function.
    """

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], key: Callable[..., object] | None, cache: HandleCache) -> None:
        functools.update_wrapper(self, function)
        self.cache = cache
        self._function = function
        self._key = key
        self._number = next(_serial)
        self._signature: Signature | None = None
        code = getattr(function, "__code__", None)
        #: With exactly so many positional arguments nothing has to be bound; -1: always bind.
        self._exact = -1
        if code is not None and not code.co_flags & _VARIADIC and not code.co_kwonlyargcount:
            self._exact = code.co_argcount

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            token = self.token(*args, **kwargs)
        except UncacheableError as error:
            name = getattr(self._function, "__qualname__", repr(self._function))
            self.cache._count("uncacheable")
            say("warning", f"{name} is built anew at every call: {error}", once=f"memoize {self._number}")
            return self._function(*args, **kwargs)
        if token is None:
            return self._function(*args, **kwargs)  # which says what is wrong with its arguments
        return self.cache._find(token, lambda: self._function(*args, **kwargs))

    def token(self, *args: Any, **kwargs: Any) -> str | None:
        """What a call with these arguments is filed under; None when they do not fit the function.

        Raises UncacheableError when there can be no key.
        """
        if self._key is not None:
            key = self._key(*args, **kwargs)
            # A tuple is laid out, for the way token_of takes a tuple: part by part.
            whole = type(key) is not tuple
            return token_of((self._number, whole, key) if whole else (self._number, whole, *key))  # type: ignore[misc]  # a tuple there
        given = args
        if kwargs or len(args) != self._exact:
            try:
                given = self._bound(args, kwargs)
            except TypeError:
                return None
        return token_of((self._number, self._function, *given))

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments in the order of the parameters, however they were passed; defaults filled in."""
        if self._signature is None:
            import inspect

            self._signature = inspect.signature(self._function)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<memoized {self._function!r}: {len(self.cache)} handles>"


register(f"{Memoized.__module__}.{Memoized.__qualname__}", lambda value: value.__wrapped__)


if TYPE_CHECKING:

    @overload
    def memoize_handle(function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def memoize_handle(
        *,
        key: Callable[..., object] | None = None,
        cache: HandleCache | None = None,
        max_entries: int | None = None,
        on_evict: Callable[[Any], object] | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def memoize_handle(
    function: Callable[..., Any] | None = None,
    /,
    *,
    key: Callable[..., object] | None = None,
    cache: HandleCache | None = None,
    max_entries: int | None = None,
    on_evict: Callable[[Any], object] | None = None,
) -> Any:
    """Decorate a function that makes handles: ``@memoize_handle`` or ``@memoize_handle(key=…)``.

    ``key(*args, **kwargs)`` gives the key of a call, anything that a HandleCache takes
    for one. Without it the key is the function itself (its fingerprint) and all
    arguments, however they were passed; tensors count by what a compiler sees of them,
    never by their elements. A call that can have no key is made each time; the reason
    is counted (``uncacheable``) and said once.

    ``cache`` is shared with others, else there is one of its own, of ``max_entries``
    (256) and with ``on_evict``. A handle that works on one device only needs that
    device among the arguments or in the key.
    """
    if cache is not None and (max_entries is not None or on_evict is not None):
        raise UsageError("max_entries and on_evict belong to the cache that is made here; a shared one has its own")

    def decorate(function: Callable[..., Any]) -> Memoized:
        if not callable(function):
            raise UsageError(f"memoize_handle decorates a function, not a {type(function).__name__}")
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & _ONE_SHOT:
            raise UsageError(f"{function.__name__} is a coroutine or generator: what it returns can be used only once")
        own = cache
        if own is None:
            own = HandleCache(DEFAULT_ENTRIES if max_entries is None else max_entries, on_evict=on_evict)
        return Memoized(function, key, own)

    return decorate if function is None else decorate(function)
