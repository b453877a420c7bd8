"""What a remote is: named bytes, somewhere else, written once.

    RemoteError
    ├── AbsentError      there is no such object; nothing is wrong
    ├── RefusedError     it said no: credentials, permission, a full bucket, a value too large
    ├── TimedOutError    no answer in time; it may or may not have happened
    └── BrokenError      an answer that makes no sense, or none: reset, 500, cut short, unreachable

Each carries ``cause``, one word for a counter. Which of the four it is decides what
happens next: absent is a miss, refused is not tried again, timed out opens the
breaker at once, broken is tried again a little later.

A backend implements ``Remote`` and certifies itself with
``hotstart.testing.RemoteConformance``. It holds no policy: no retries, no
signatures, no compression. Those are decorators, in files of their own.
"""

from __future__ import annotations

import threading

from ..errors import AbsentError as AbsentError
from ..errors import BrokenError as BrokenError
from ..errors import RefusedError as RefusedError
from ..errors import RemoteError as RemoteError
from ..errors import TimedOutError as TimedOutError
from ..errors import UsageError
from ..log import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Bytes = bytes | bytearray | memoryview
    Ranges = list[tuple[int, int]]  # (start, length); a class with a method ``list`` cannot say it itself
    Parts = list[Bytes]

#: Everything that is not a large transfer ends within this many seconds, one way or the other.
DEFAULT_TIMEOUT = 5.0

#: A name is a relative path of these; bucket policies match on it, and no backend has to escape it.
_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_MAX_NAME = 512

#: How many requests of one call are under way at the same time.
_PARALLEL = 8


class Found:
    """The beginning of an object, or all of it.

    ``size`` is that of the whole object; ``tag`` stands for this very version of it
    and is what ``put(replaces=…)`` compares.
    """

    __slots__ = ("data", "size", "tag")

    def __init__(self, data: Bytes, size: int, tag: str) -> None:
        self.data = data
        self.size = size
        self.tag = tag


class Item:
    """An object as a listing shows it. ``modified`` is in seconds since the epoch, by the remote's clock."""

    __slots__ = ("modified", "name", "size")

    def __init__(self, name: str, size: int, modified: float) -> None:
        self.name = name
        self.size = size
        self.modified = modified

    def __repr__(self) -> str:
        return f"<Item {self.name} {self.size}>"


class Remote:
    """Named bytes somewhere else. Any number of threads may use one object.

    All methods raise RemoteError and nothing else for what the network or the
    server does; UsageError for a name that cannot be one.
    """

    #: For people and logs; never holds a credential.
    shown = "remote"
    #: A name for this place in file names: the same for everybody who opens it, whatever their credentials.
    identity = "remote"
    #: Seconds that a request which is not a large transfer may take.
    timeout = DEFAULT_TIMEOUT
    #: ``put`` and ``delete`` raise RefusedError.
    read_only = False
    #: Larger values are refused, with cause ``oversize``; None for no limit.
    max_value: int | None = None
    #: Requests made, of any kind: what a start costs is counted here.
    requests = 0
    #: Signs of life, of any call: who waits for a long one goes on waiting while these come.
    beats = 0
    #: Bytes in a second that are worth waiting for; who gets fewer has waited for nothing.
    slowest = 64_000
    #: Nothing in here bounds how long a call takes, as in a file system: whoever calls has to.
    unbounded = False
    #: How it was opened, for who opens it again elsewhere. May hold a password; nothing shows it.
    address = ""

    def prepare(self) -> None:
        """Import and set up what a call needs; sends nothing. Raises RefusedError for what is not installed."""

    def get(self, name: str, limit: int) -> Found:
        """The first ``limit`` bytes, in one round trip. Raises AbsentError."""
        raise NotImplementedError

    def get_range(self, name: str, start: int, length: int, tag: str = "") -> Bytes:
        """Exactly these bytes. With a tag, of that version only: BrokenError when it was replaced."""
        raise NotImplementedError

    def put(self, name: str, data: Bytes, *, replaces: str = "") -> bool:
        """Create; False when there is an object of that name already, which is left as it is.

        With ``replaces``, put this in the place of the version with that tag; False
        when it is another version by now. Atomic: a reader sees all or nothing.
        Safe to repeat.
        """
        raise NotImplementedError

    def delete(self, names: Iterable[str]) -> None:
        """Remove these; those that are not there are no error."""
        raise NotImplementedError

    def list(self, prefix: str) -> Iterator[Item]:
        """All objects whose name begins with ``prefix``, which ends with a slash or is empty. In no order."""
        raise NotImplementedError

    def get_many(self, names: Iterable[str], limit: int) -> dict[str, Found]:
        """``get`` of several at once; those that are absent are left out. The first other error is raised."""
        found: dict[str, Found] = {}

        def one(name: str) -> None:
            try:
                found[name] = self.get(name, limit)
            except AbsentError:
                pass

        in_parallel(one, names)
        return found

    def get_ranges(self, name: str, ranges: Ranges, tag: str = "") -> Parts:
        """Several (start, length), in parallel, in the order asked."""
        parts: Parts = [b""] * len(ranges)

        def one(number: int) -> None:
            parts[number] = self.get_range(name, *ranges[number], tag)

        in_parallel(one, range(len(ranges)))
        return parts

    def stream(self, name: str, start: int, length: int) -> Iterator[Bytes]:
        """These bytes piece by piece, in one request, for who works on the first while the last is on its way."""
        yield self.get_range(name, start, length)

    def close(self) -> None:
        """Let go of connections. May be used again afterwards."""

    def after_fork(self) -> None:
        """In a child: connections of the parent must not be used."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shown}>"


_listening = threading.local()


def listen(hear: Callable[[int], object] | None) -> None:
    """From now on ``hear`` is told how many bytes calls in this thread have got through."""
    _listening.hear = hear


def progress(count: int) -> None:
    """So many bytes came, or are known to be on their way: whoever waits for this call gives it time in proportion."""
    hear = getattr(_listening, "hear", None)
    if hear is not None:
        hear(count)


def as_remote_error(error: BaseException, shown: str) -> RemoteError:
    """What a client raised that its backend did not expect: BrokenError, cause ``nonsense``.

    A panic of a client in Rust is no Exception, and an answer of a wrong type ends as a TypeError somewhere: neither
    may end a program that compiles. Raises what is not the remote's: the end of the process, a lack of memory, a name
    that cannot be one. The client's own text is left out, since it may hold a URL with a password.
    """
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, UsageError)):
        raise error
    say("debug", f"{shown}: {type(error).__name__}")
    return BrokenError(f"{shown}: an answer that makes no sense ({type(error).__name__})", "nonsense")


def check_name(name: str) -> str:
    """Raises UsageError for what could leave the prefix, or would have to be escaped somewhere."""
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
        raise UsageError(f"an object name is a string of 1 to {_MAX_NAME} characters, not {name!r}")
    for part in name.split("/"):
        if not part or part in (".", "..") or not _ALLOWED.issuperset(part):
            raise UsageError(f"object name {name!r}: parts of letters, digits, '.', '_', '-', joined by single slashes")
    return name


def in_parallel(work: Callable[[Any], object], items: Iterable[Any], most: int = _PARALLEL) -> None:
    """``work`` on each item, several at a time; the first exception is raised once all have ended.
    A Ctrl-C is raised at once: the other threads are left to end by themselves.

    Plain threads that end with the call: a pool would have to be looked after across forks.
    """
    waiting = list(items)[::-1]
    errors: list[BaseException] = []
    hear, caller = getattr(_listening, "hear", None), threading.get_ident()

    def helper() -> None:
        listen(hear)
        worker()

    def worker() -> None:
        while waiting and not errors:
            try:
                item = waiting.pop()
            except IndexError:
                return  # another worker took the last one
            try:
                work(item)
            except Exception as error:
                errors.append(error)
            except BaseException as error:
                errors.append(error)  # and nobody begins with another item
                if threading.get_ident() == caller:
                    raise

    threads = [threading.Thread(target=helper, daemon=True) for _ in range(min(most, len(waiting)) - 1)]
    running = []
    for thread in threads:
        try:
            thread.start()
        except RuntimeError:
            break  # the interpreter is ending: this thread does all of it
        running.append(thread)
    worker()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
