"""Two contexts of runs compared, in words: "OMP_NUM_THREADS 2 → 1", "torch 2.12.1 → 2.13.0", "model.py edited".

``bearing`` says which of these can be the reason of a miss in which framework.
"""

from __future__ import annotations

from ..launch.context import HIDDEN
from .bearing import HEADERS, NATIVE, bearing
from .words import shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Context = dict[str, Any]

_SHOWN = 60


class Change:
    """One thing that differs between two runs.

    ``cause``    its kind: version, python, variable, threads, device, driver, cpu, source, header,
                 beside (a file that nothing is seen to import), option, program, place, compiler, user, machine
    ``subject``  what: ``torch``, ``OMP_NUM_THREADS``, ``model.py``
    ``text``     the sentence
    """

    __slots__ = ("cause", "new", "old", "subject", "text")

    def __init__(self, cause: str, subject: str, old: str, new: str, text: str = "") -> None:
        self.cause = cause
        self.subject = subject
        self.old = old
        self.new = new
        self.text = text or f"{subject} {shorten(old or 'unset', _SHOWN)} → {shorten(new or 'unset', _SHOWN)}"

    def bears_on(self, framework: str) -> int:
        """Whether this can be why ``framework`` missed: LIKELY, POSSIBLE or UNRELATED."""
        return bearing(self.cause, self.subject, framework)

    def plain(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("cause", "subject", "old", "new", "text")}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Change {self.text}>"


def compare(old: Context, new: Context) -> list[Change]:
    """Everything that differs, the most telling first."""
    return [
        *_simple(old, new),
        *_versions(old, new),
        *_variables(old, new),
        *_machine(old, new),
        *_sources(old, new),
        *_arguments(old.get("arguments") or [], new.get("arguments") or []),
        *_places(old, new),
    ]


def _simple(old: Context, new: Context) -> Iterator[Change]:
    if old.get("program") != new.get("program"):
        yield Change("program", "program", str(old.get("program", "")), str(new.get("program", "")))
    if old.get("python") != new.get("python"):
        yield Change("python", "Python", old.get("python") or "", new.get("python") or "")
    if old.get("machine") != new.get("machine"):
        yield Change("machine", "machine", old.get("machine") or "", new.get("machine") or "")


def _versions(old: Context, new: Context) -> Iterator[Change]:
    before, after = old.get("packages") or {}, new.get("packages") or {}
    if not before or not after:
        return  # of one of them nothing is known, and not everything was installed since
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        if was == now:
            continue
        text = f"{name} {was} → {now}" if was and now else f"{name} {now} was installed" if now else f"{name} is gone"
        yield Change("version", name, was or "", now or "", text)


def _variables(old: Context, new: Context) -> Iterator[Change]:
    before, after = old.get("env") or {}, new.get("env") or {}
    named = set()
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        if was == now or (HIDDEN in (was, now) and was and now):
            continue
        named.add(name)
        yield Change("variable", name, was or "", now or "")
    if old.get("threads") != new.get("threads") and "OMP_NUM_THREADS" not in named:
        yield Change("threads", "CPU threads", str(old.get("threads", "")), str(new.get("threads", "")))


def _machine(old: Context, new: Context) -> Iterator[Change]:
    before, after = old.get("gpus") or [], new.get("gpus") or []
    if before != after:
        first, second = before[0] if before else {}, after[0] if after else {}
        arch = first.get("arch", ""), second.get("arch", "")
        name = first.get("name", ""), second.get("name", "")
        if arch[0] != arch[1]:
            yield Change("device", "GPU architecture", arch[0] or "none", arch[1] or "none")
        if name[0] != name[1]:
            yield Change("device", "GPU", name[0] or "none", name[1] or "none")
        if len(before) != len(after):
            yield Change("devices", "number of GPUs", str(len(before)), str(len(after)))
    if old.get("driver") != new.get("driver"):
        yield Change("driver", "NVIDIA driver", old.get("driver") or "none", new.get("driver") or "none")
    was, now = old.get("cpu") or {}, new.get("cpu") or {}
    if was.get("model") != now.get("model"):
        yield Change("cpu", "CPU", was.get("model", ""), now.get("model", ""))
    features = set(str(was.get("features", "")).split()), set(str(now.get("features", "")).split())
    if was and now and features[0] != features[1]:
        gained, lost = sorted(features[1] - features[0]), sorted(features[0] - features[1])
        parts = [f"{' '.join(gained)} gained"] * bool(gained) + [f"{' '.join(lost)} lost"] * bool(lost)
        text = f"CPU features: {shorten(', '.join(parts), 2 * _SHOWN)}"
        yield Change("cpu", "CPU features", " ".join(lost), " ".join(gained), text)
    was_cxx, now_cxx = old.get("compiler") or "", new.get("compiler") or ""
    if was_cxx != now_cxx and old.get("python") and new.get("python"):
        paths = was_cxx.partition(" ")[0], now_cxx.partition(" ")[0]
        text = f"C++ compiler {paths[0]} was replaced" if paths[0] == paths[1] else ""
        yield Change("compiler", "C++ compiler", *paths, text)


def _sources(old: Context, new: Context) -> Iterator[Change]:
    """Files that the program imports, and those beside them: which circle a file is in can change, too."""
    inner = {*(old.get("sources") or {}), *(new.get("sources") or {})}
    before, after = ({**(side.get("beside") or {}), **(side.get("sources") or {})} for side in (old, new))
    gone = {name: digest for name, digest in before.items() if name not in after}
    for name in sorted({*before, *after}):
        was, now = before.get(name, ""), after.get(name, "")
        if was == now:
            continue
        cause = _cause(name, name in inner)
        if not was:
            earlier = next((other for other, digest in gone.items() if digest == now), "")
            if earlier:
                del gone[earlier]
                yield Change(cause, name, earlier, name, f"{earlier} was renamed to {name}")
            else:
                yield Change(cause, name, "", now, f"{name} is new")
        elif now:
            yield Change(cause, name, was, now, f"{name} was edited")
    for name, digest in gone.items():
        yield Change(_cause(name, name in inner), name, digest, "", f"{name} is gone")


def _cause(name: str, imported: bool) -> str:
    if name.endswith(HEADERS):
        return "header"
    if name.endswith(NATIVE) or imported:
        return "source"
    return "beside"


def _arguments(before: list[str], after: list[str]) -> Iterator[Change]:
    if before == after:
        return
    was, now = _options(before), _options(after)
    for name in sorted({*was, *now} - {""}):
        if was.get(name) != now.get(name):
            old, new = (None if side.get(name) is None else " ".join(side[name]) for side in (was, now))
            if old is None or new is None:
                yield Change(
                    "option",
                    name,
                    old or "",
                    new or "",
                    f"{name} {new}".rstrip() + " was added"
                    if old is None
                    else f"{name} {old}".rstrip() + " was left out",
                )
            else:
                yield Change("option", name, old, new)
    if was.get("") != now.get(""):
        old, new = (" ".join(side.get("", [])) for side in (was, now))
        text = f"arguments {shorten(old or 'none', _SHOWN)} → {shorten(new or 'none', _SHOWN)}"
        yield Change("option", "arguments", old, new, text)


def _options(arguments: list[str]) -> dict[str, list[str]]:
    """Options and the words after them; under "" the words before the first option."""
    found: dict[str, list[str]] = {}
    current = ""
    for word in arguments:
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            current, assigned, value = word.partition("=")
            found.setdefault(current, []).extend([value] if assigned else [])
            if assigned:
                current = ""
        else:
            found.setdefault(current, []).append(word)
    return found


def _places(old: Context, new: Context) -> Iterator[Change]:
    before, after = old.get("places") or {}, new.get("places") or {}
    for name in sorted({*before} & {*after}):
        if _versionless(before[name], old) != _versionless(after[name], new):
            text = f"{name} moved: {shorten(before[name], _SHOWN)} → {shorten(after[name], _SHOWN)}"
            yield Change("place", name, before[name], after[name], text)
    if old.get("user") != new.get("user"):
        yield Change("user", "user", old.get("user") or "", new.get("user") or "")


def _versionless(place: str, context: Context) -> str:
    """A site directory without the Python version in it, which is a change of its own."""
    short = ".".join(str(context.get("python") or "").split(".")[:2])
    return place.replace(f"/python{short}/", "/python/") if short else place
