"""``Timings``: what is known of one configuration space, how two of them merge, and their forms.

Merging takes everything from both sides, the order does not matter, and merging
twice changes nothing: that is what lets processes, files and machines be put
together in any order without losing a measurement.

Stored it is two artifacts, ``question`` and ``timings``, canonical encodings; exported
it is JSON in which types survive:

    null, true, 1, 1.5, "text", [list], {"name": value}      as they are
    {"$tuple": […]}, {"$set": […]}, {"$bytes": "hex"}, {"$complex": [re, im]}
    {"$float": "nan" | "inf" | "-inf"}, {"$dict": [[key, value], …]}
"""

from __future__ import annotations

import math

from ..keys.digest import MAX_DEPTH, decode, digest_of, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Mapping(Protocol):
        """What an entry and a dict have in common."""

        def __getitem__(self, name: str, /) -> bytes: ...


#: Raised when stored or exported results change their meaning; others are then not seen.
SCHEMA = 1

#: Samples kept of one configuration: the fastest, since disturbance only ever adds time.
_SAMPLES = 32

_REASON = 200

#: Whole seconds beyond this are no time, and may be more than a float can hold.
_LONGEST = 10**15

#: What an exported result consists of, besides its configurations.
FIELDS = ("name", "kernel", "arguments", "device", "driver", "toolchain", "tuner")


class Timings:
    """Samples and failures by the number of a configuration in its space. Changed only by ``add`` and ``merge``."""

    __slots__ = ("about", "configs", "failed", "samples")

    def __init__(self, about: dict[str, Any], configs: list[Any]) -> None:
        #: The fields of the key, as plain data.
        self.about = about
        #: The space: plain data, in the order of its encodings.
        self.configs = configs
        #: Seconds, ascending.
        self.samples: dict[int, tuple[float, ...]] = {}
        #: Why a configuration could not be measured; one that ever was is not here.
        self.failed: dict[int, str] = {}

    def add(self, number: int, seconds: float | None, reason: str = "") -> None:
        """One measurement: seconds, or None with the reason. What is not a time is a failure."""
        if seconds is not None and math.isfinite(seconds) and seconds >= 0:
            known = self.samples.get(number, ())
            self.samples[number] = tuple(sorted({*known, float(seconds)})[:_SAMPLES])
            self.failed.pop(number, None)
        elif number not in self.samples:
            lines = (reason or f"measured {seconds!r} seconds").strip().splitlines()
            first = lines[0][:_REASON] if lines else "failed"
            self.failed[number] = min(first, self.failed.get(number, first))

    def merge(self, other: Timings) -> None:
        for number, samples in other.samples.items():
            for seconds in samples:
                self.add(number, seconds)
        for number, reason in other.failed.items():
            self.add(number, None, reason)

    def best(self) -> int | None:
        """The fastest; of equals the first, so that every process chooses the same."""
        return min(self.samples, key=lambda number: (self.samples[number][0], number), default=None)

    def missing(self, *, retry_failed: bool = False) -> list[int]:
        """What is still to be measured. When nothing could be, everything: a failure is no result."""
        skipped = self.samples.keys() if retry_failed or not self.samples else {*self.samples, *self.failed}
        return [number for number in range(len(self.configs)) if number not in skipped]

    # -- stored ------------------------------------------------------------------------

    def artifacts(self) -> dict[str, bytes]:
        """The question, which only an export reads, apart from the answers."""
        found = {
            "timings": encode((self.samples, self.failed)),
            "question": encode((self.about, self.configs)),
        }
        best = self.best()
        if best is not None:
            found["best_config"] = encode(self.configs[best])
        return found

    def read(self, data: bytes) -> None:
        """Add an artifact ``timings``. Raises ValueError when it is not what ``artifacts`` writes."""
        try:
            samples, failed = decode(data)
            for number, times in samples.items():
                for seconds in times:
                    self.add(self._number(number), seconds)
            for number, reason in failed.items():
                self.add(self._number(number), None, reason)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not timings: {error!r}") from None

    @classmethod
    def stored(cls, entry: Mapping) -> Timings:
        """All of an entry. Raises ValueError, KeyError when it is none of ours."""
        try:
            about, configs = decode(entry["question"])
            made = cls(dict(about), list(configs))
        except TypeError as error:
            raise ValueError(f"no question: {error!r}") from None
        made.read(entry["timings"])
        return made

    def _number(self, number: object) -> int:
        if type(number) is not int or not 0 <= number < len(self.configs):
            raise ValueError(f"no configuration {number!r}")
        return number

    # -- exported -------------------------------------------------------------------------

    def exported(self) -> dict[str, Any]:
        configs = []
        for number, config in enumerate(self.configs):
            row: dict[str, Any] = {"config": to_json(config)}
            if number in self.samples:
                row["seconds"] = list(self.samples[number])
            elif number in self.failed:
                row["failed"] = self.failed[number]
            configs.append(row)
        return {**{name: to_json(self.about[name]) for name in FIELDS}, "configs": configs}

    @classmethod
    def imported(cls, data: Any) -> Timings:
        """Raises ValueError saying what is wrong."""
        if not isinstance(data, dict) or not isinstance(data.get("configs"), list) or not data["configs"]:
            raise ValueError("a result is an object with a list of configs")
        lacking = [name for name in FIELDS if name not in data]
        if lacking:
            raise ValueError(f"{', '.join(lacking)} missing")
        rows = []
        for row in data["configs"]:
            if not isinstance(row, dict) or "config" not in row:
                raise ValueError("each of configs is an object with a config")
            config = from_json(row["config"])
            rows.append((encode(config), config, row))
        rows.sort(key=lambda item: item[0])
        if len({raw for raw, _, _ in rows}) < len(rows):
            raise ValueError("the same config twice")
        made = cls({name: from_json(data[name]) for name in FIELDS}, [config for _, config, _ in rows])
        for number, (_, _, row) in enumerate(rows):
            samples, reason = row.get("seconds", []), row.get("failed")
            if not isinstance(samples, list) or not all(map(_is_time, samples)):
                raise ValueError(f"seconds are times, not {repr(samples)[:_REASON]}")
            for seconds in samples:
                made.add(number, seconds)
            if reason is not None:
                made.add(number, None, str(reason))
        return made


def _is_time(value: object) -> bool:
    if type(value) is int:
        return 0 <= value <= _LONGEST
    return type(value) is float and math.isfinite(value) and value >= 0


def plain(value: object) -> Any:
    """``value`` as plain data that comes back from disk and JSON as it was.

    What has a canonical form but is no data (a toolchain, an enum, a dtype) is
    represented by the digest of that form. Raises UncacheableError.
    """
    raw = encode(value)
    try:
        return decode(raw)
    except ValueError:
        return {"blake3": digest_of(raw)}


def to_json(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind is list:
        return [to_json(item) for item in value]
    if kind is tuple:
        return {"$tuple": [to_json(item) for item in value]}
    if kind is dict:
        if all(type(name) is str and not name.startswith("$") for name in value):
            return {name: to_json(item) for name, item in value.items()}
        return {"$dict": [[to_json(name), to_json(item)] for name, item in value.items()]}
    if kind is bytes:
        return {"$bytes": value.hex()}
    if kind is complex:
        return {"$complex": [to_json(value.real), to_json(value.imag)]}
    return {"$set": [to_json(item) for item in sorted(value, key=encode)]}


def from_json(value: Any, depth: int = 0) -> Any:
    """The inverse of ``to_json``; ValueError for anything else."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, list):
        return [from_json(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if not any(name.startswith("$") for name in value):
        return {name: from_json(item, depth + 1) for name, item in value.items()}
    if len(value) != 1:
        raise ValueError(f"{sorted(value)} in one object")
    ((tag, content),) = value.items()
    if tag not in _TAGS:
        raise ValueError(f"unknown tag {tag!r}")
    try:
        return _TAGS[tag](from_json(content, depth + 1))
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{tag}: {error}") from None


def _sequence(made: Any) -> Any:
    def check(content: Any) -> Any:
        if not isinstance(content, list):
            raise ValueError("needs a list")
        return made(content)

    return check


_TAGS: dict[str, Any] = {
    "$tuple": _sequence(tuple),
    "$set": _sequence(frozenset),
    "$dict": _sequence(dict),
    "$complex": _sequence(lambda parts: complex(*parts)),
    "$bytes": bytes.fromhex,
    "$float": float,
}
