"""``TuningCache``: the best configuration of a kernel, and every timing that led to it.

Results are filed under everything they depend on: kernel, arguments, the whole
configuration space, the *name* of the device (an H100 and an H200 are both sm_90),
driver, toolchain, and who measured how. So a different tuner, space or device in the
same directory never sees another's results.

Each question has one entry in the cache. Who adds to it reads it from disk, merges
(``compilers.timings``) and writes it back under a lock file of its own, so nothing
that another process measured is lost. What cannot be written (a read-only store, a
full disk) stays in this process and is merged with the next write that succeeds.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict

from ..errors import HotstartError, UsageError
from ..keys.digest import digest_of, encode
from ..keys.key import Key
from .space import Space, coded, signature, space_digest
from .timings import FIELDS, SCHEMA, Timings, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ..cache import Cache
    from ..store.flight import Flights

#: While a tuning runs its results are stored this often; a killed process loses no more.
_FLUSH_EVERY = 0.2

#: How long a merge waits for another's, which takes a millisecond or two; and one that is only the next of many.
_MERGE_WAIT, _FLUSH_WAIT = 10.0, 0.5

#: Questions whose results could not be stored and are remembered by this process.
_UNSTORED = 4096


class Tuning:
    """What is known of one question. ``best`` and ``seconds`` are None while nothing could be measured."""

    __slots__ = ("best", "complete", "failed", "measured", "seconds", "timings", "untried")

    #: The fastest configuration, as it was given in the space.
    best: Any
    seconds: float | None
    #: Every measured configuration with its time, fastest first.
    timings: list[tuple[Any, float]]
    #: Configurations that could not be measured, with the reason.
    failed: list[tuple[Any, str]]
    untried: list[Any]
    complete: bool
    #: How many configurations this call measured: 0 when all was known.
    measured: int

    def __init__(self, space: Space, known: Timings, measured: int = 0) -> None:
        configs = space.configs
        order = sorted(known.samples, key=lambda number: (known.samples[number][0], number))
        self.timings = [(configs[number], known.samples[number][0]) for number in order]
        self.best, self.seconds = self.timings[0] if self.timings else (None, None)
        self.failed = [(configs[number], reason) for number, reason in sorted(known.failed.items())]
        self.untried = [configs[n] for n in range(len(configs)) if n not in known.samples and n not in known.failed]
        self.complete = bool(self.timings) and not self.untried
        self.measured = measured

    def __repr__(self) -> str:
        return f"<Tuning {self.best!r} {self.seconds} s, {len(self.timings)} timed, {len(self.failed)} failed>"


class TuningCache:
    """Tuning results of one tuner, in a ``hotstart.Cache``.

    ``tuner``      who measures and how, in any canonical form: ``("mylib.bench", 3, "warmup 25 rep 100")``
    ``toolchain``  what compiles the kernels: ``keys.toolchain.triton()``, a version string
    ``device``, ``driver``  what runs them, by name; by default the current device of this process

    Only misuse raises, and ``get_or_tune`` when no configuration could be measured.
    Safe for threads, processes and forks.
    """

    def __init__(
        self, cache: Cache, *, tuner: object, toolchain: object, device: str | None = None, driver: str | None = None
    ) -> None:
        for what, value in (("tuner", tuner), ("toolchain", toolchain)):
            if value is None or value == "":
                raise UsageError(f"{what} says whose timings these are; it cannot be empty")
        self._cache = cache
        self._tuner = plain(coded(tuner))
        self._toolchain = plain(toolchain)
        self._device = device
        self._driver = driver
        self._unstored: OrderedDict[str, Timings] = OrderedDict()

    # -- asking ------------------------------------------------------------------------

    def get(
        self, kernel: object, arguments: object, space: Any, *, name: str = "", device: str | None = None
    ) -> Tuning | None:
        """What is known, or None when nothing is. Incomplete results are results: see ``untried``."""
        question = self._question(kernel, arguments, space, name, device)
        known = self._known(question, fresh=False)
        if known.missing():
            known = self._known(question, fresh=True)  # another process may have gone further
        return Tuning(question.space, known) if known.samples or known.failed else None

    def get_or_tune(
        self,
        kernel: object,
        arguments: object,
        space: Any,
        measure: Callable[[Any], float],
        *,
        name: str = "",
        device: str | None = None,
        retry_failed: bool = False,
    ) -> Tuning:
        """The best configuration; ``measure(config)`` is called for those nobody has measured yet.

        ``kernel`` is a function or its fingerprint; ``arguments`` what the timings depend
        on of the arguments: plain data, or tensors, by ``tensor_signature``. ``measure``
        returns seconds. NaN, infinity and exceptions make a failed configuration, which
        is recorded and not tried again unless ``retry_failed``.

        Threads and processes with the same question wait for the one that measures: two
        at once would disturb each other. Interrupted or killed, what was measured stays,
        and the next one goes on from there. Raises HotstartError, from the first
        exception of ``measure``, when no configuration could be measured.
        """
        question = self._question(kernel, arguments, space, name, device)
        known = self._known(question, fresh=False)
        if not known.missing(retry_failed=retry_failed):
            return Tuning(question.space, known)
        return self._tune(question, measure, retry_failed)

    def record(
        self,
        kernel: object,
        arguments: object,
        space: Any,
        timings: Iterable[tuple[Any, float | None]],
        *,
        name: str = "",
        device: str | None = None,
        cost: float = 0.0,
    ) -> Tuning:
        """Add measurements made elsewhere: pairs of configuration and seconds, None or NaN for a failure.

        ``cost`` is the seconds it took to measure them. Returns all that is known now.
        Raises UsageError for a configuration that is not in the space, before anything is stored.
        """
        question = self._question(kernel, arguments, space, name, device)
        new = question.empty()
        for config, seconds in timings:
            new.add(question.space.number(config), None if seconds is None else _seconds(seconds))
        return Tuning(question.space, self._merge(question.key, new, cost))

    def forget(
        self, kernel: object, arguments: object, space: Any, *, name: str = "", device: str | None = None
    ) -> bool:
        """Remove what is known of one question; whether there was anything."""
        key = self._question(kernel, arguments, space, name, device).key
        remembered = self._unstored.pop(key.digest, None) is not None
        return self._cache.delete(key) or remembered

    # -- tuning ------------------------------------------------------------------------

    def _tune(self, question: _Question, measure: Callable[[Any], float], retry_failed: bool) -> Tuning:
        flights = self._cache.flights()
        turn = question.turn
        deadline = time.monotonic() + self._cache.wait
        while turn not in flights.held():
            flight, leading = flights.join(turn)
            if leading:
                held = flights.held()
                lock = None
                try:
                    lock = flights.lock(turn, deadline, flights.may_wait(turn))
                    held.append(turn)
                    return self._measure(question, measure, retry_failed)
                except Exception as error:
                    flight.error = error
                    raise
                finally:
                    if turn in held:
                        held.remove(turn)
                    if lock is not None:
                        lock.release(stored=True)
                    flights.land(turn, flight)
            if not flights.may_wait(turn) or not flight.done.wait(max(0.0, deadline - time.monotonic())):
                break
            if flight.error is not None:
                raise flight.error
            known = self._known(question, fresh=False)
            if not known.missing():
                return Tuning(question.space, known)
            # The one that measured was interrupted: go on where it stopped.
        return self._measure(question, measure, retry_failed)

    def _measure(self, question: _Question, measure: Callable[[Any], float], retry_failed: bool) -> Tuning:
        known = self._known(question, fresh=True)
        missing = known.missing(retry_failed=retry_failed)
        new = question.empty()
        first: Exception | None = None
        began = flushed = time.monotonic()
        pause = _FLUSH_EVERY
        try:
            for number in missing:
                try:
                    new.add(number, _seconds(measure(question.space.configs[number])))
                except UsageError:
                    raise
                except Exception as error:
                    first = first or error
                    new.add(number, None, f"{type(error).__name__}: {error}")
                now = time.monotonic()
                if now - flushed >= pause:
                    known.merge(self._merge(question.key, new, now - flushed, wait=_FLUSH_WAIT))
                    new, flushed = question.empty(), time.monotonic()
                    # A disk that is slow, or a lock that somebody sits on, must not be what tuning takes its time for.
                    pause = max(_FLUSH_EVERY, 20 * (flushed - now))
        finally:
            # Merged into what is known here as well: the store may have evicted it a moment later.
            if new.samples or new.failed:
                known.merge(self._merge(question.key, new, time.monotonic() - flushed))
        if known.best() is None:
            reason = next(iter(known.failed.values()), "")
            raise HotstartError(
                f"none of the {len(question.space)} configurations could be measured"
                f" ({time.monotonic() - began:.1f} s); the first: {reason}"
            ) from first
        return Tuning(question.space, known, len(missing))

    # -- reading and merging -----------------------------------------------------------

    def _known(self, question: _Question, *, fresh: bool) -> Timings:
        known = question.empty()
        self._read(question.key, known, fresh=fresh)
        unstored = self._unstored.get(question.key.digest)
        if unstored is not None:
            known.merge(unstored)
        return known

    def _read(self, key: Key, known: Timings, *, fresh: bool) -> float | None:
        """Add what is stored to ``known``; the seconds it cost, or None when there is nothing.

        ``fresh`` looks past the memory tier, which other processes do not see.
        """
        cache = self._cache
        entry = cache.get_stored(key) if fresh else cache.get(key)
        if entry is None:
            return None
        try:
            known.read(entry["timings"])
        except (ValueError, KeyError):
            cache.counters.add("tuning.unreadable")  # somebody else's idea of this kind
            return None
        return entry.cost

    def _merge(self, key: Key, new: Timings, cost: float, wait: float = _MERGE_WAIT) -> Timings:
        """Add to what is stored, whoever else does; all that is known afterwards."""
        digest = key.digest
        with _merging:
            unstored = self._unstored.pop(digest, None)
            if unstored is not None:
                new.merge(unstored)
            flights: Flights = self._cache.flights()
            lock = flights.lock(_token("merge", digest), time.monotonic() + wait, True)
            stored = False
            try:
                spent = self._read(key, new, fresh=True)
                # Without the lock, or over what could not be read, another's results would be lost: keep ours here.
                if (lock is not None or flights.directory is None) and (spent is not None or self._is_free(digest)):
                    stored = self._cache.put(key, new.artifacts(), cost=cost + (spent or 0.0))
            finally:
                if lock is not None:
                    lock.release(stored=True)
                if not stored or self._cache.disk is None:
                    self._unstored[digest] = new
                    while len(self._unstored) > _UNSTORED:
                        self._unstored.popitem(last=False)
        return new

    def _is_free(self, digest: str) -> bool:
        """Whether there is nothing on disk under a key that gave no entry: it may just not be readable now."""
        disk = self._cache.disk
        if disk is None or disk.ttl_ns:
            return True  # what has expired is there and may be replaced
        try:
            return not disk.contains(digest)
        except OSError as error:
            self._cache.counters.error("tuning", error)
            return False

    # -- files -------------------------------------------------------------------------

    def export_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """All results of this tuner in the store as JSON; also written to ``path``, whole or not at all."""
        from .tuning_file import dump, write

        text = dump(self._results())
        if path is not None:
            write(os.fspath(path), text)
        return text

    def import_json(self, path: str | os.PathLike[str]) -> int:
        """Merge the results of an exported file into the store; how many there were.

        Raises UsageError, one line, for a file that is damaged or of another schema.
        The file is understood as a whole before anything is stored.
        """
        from .tuning_file import read

        return self.import_text(read(os.fspath(path)), source=os.fspath(path))

    def import_text(self, text: str, *, source: str = "the text") -> int:
        """``import_json`` for what is not in a file."""
        from .tuning_file import load

        results = load(text, source)
        for timings in results:
            self._merge(_key(timings.about, space_digest(timings.configs)), timings, 0.0)
        return len(results)

    def _results(self) -> list[Timings]:
        found: dict[str, Timings] = {}
        disk = self._cache.disk
        for digest in self._cache.digests("tuning") if disk is not None else ():
            entry = disk.read(digest) if disk is not None else None
            if entry is not None and self._cache.admits(entry):
                try:
                    found[digest] = Timings.stored(entry)
                except (ValueError, KeyError):
                    self._cache.counters.add("tuning.unreadable")
        for digest, timings in list(self._unstored.items()):
            if digest in found:
                found[digest].merge(timings)
            else:
                found[digest] = timings
        mine = encode(self._tuner)
        return [found[digest] for digest in sorted(found) if encode(found[digest].about["tuner"]) == mine]

    # -- the question ------------------------------------------------------------------

    def _question(self, kernel: object, arguments: object, space: Any, name: str, device: str | None) -> _Question:
        device = device or self._device
        if device is None or self._driver is None:
            from .devices import this_device

            # The name is asked for each time: the current device may be another by now, and of another kind.
            current, driver = this_device()
            device, self._driver = device or current, self._driver or driver
        if not isinstance(device, str) or not device.strip():
            raise UsageError(f"device is the name of the device, such as 'NVIDIA H200', not {device!r}")
        about = {
            "name": name,
            "kernel": plain(coded(kernel)),
            "arguments": signature(arguments),
            "device": device,
            "driver": self._driver,
            "toolchain": self._toolchain,
            "tuner": self._tuner,
        }
        return _Question(about, space if isinstance(space, Space) else Space(space))


class _Question:
    """One key, its space, and the token of the turn to measure it."""

    __slots__ = ("about", "key", "space", "turn")

    def __init__(self, about: dict[str, Any], space: Space) -> None:
        self.about = about
        self.space = space
        self.key = _key(about, space.digest)
        self.turn = _token("tune", self.key.digest)

    def empty(self) -> Timings:
        return Timings(self.about, self.space.data)


def _key(about: Mapping[str, Any], space: str) -> Key:
    return Key("tuning", schema=SCHEMA, space=space, **{name: about[name] for name in FIELDS})


def _token(what: str, digest: str) -> str:
    """A lock file of our own, apart from that of a compile under the same key."""
    return digest_of(f"{what} {digest}".encode())


def _seconds(value: Any) -> float:
    """What ``measure`` returned, as a number. Raises UsageError for what is none, since nothing can be made of it."""
    if not isinstance(value, (bool, str, bytes)) and hasattr(type(value), "__float__"):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise UsageError(f"measure returns the seconds a configuration takes, one number, not {value!r}")


#: One merge at a time in this process; between processes the lock file decides.
_merging = threading.Lock()


def _after_fork_in_child() -> None:
    global _merging
    _merging = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
