"""What of its surroundings a compile shows in its output: the time, and the paths of files.

Looked for by name: which uses are live is not known (conditions are not evaluated), so each
counts. One kind of use is not seen, a macro whose own name is pasted together from pieces.
"""

from __future__ import annotations

import re

from ...errors import UncacheableError
from . import scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .scanner import Definition
    from .search import Node, Search


def refuse_clocks(search: Search) -> None:
    """Raises UncacheableError when a file can put the time into the output."""
    clocks = frozenset(scanner.CLOCKS)
    clocks |= spread(clocks, search.macros)
    for node in search.nodes:
        if _mentions(search, node, clocks):
            raise UncacheableError(f"{node.label} puts the time of the compile into the output", "headers")


def spread(names: frozenset[str], macros: Mapping[str, Iterable[Definition]]) -> frozenset[str]:
    """The macros through which one of ``names`` can be used, at any remove."""
    reached: set[str] = set()
    fresh = names
    while fresh:
        using = re.compile(rf"\b(?:{'|'.join(map(re.escape, fresh))})\b")
        fresh = frozenset(
            [
                name
                for name, made in macros.items()
                if name not in reached and name not in names and any(using.search(body) for _, _, body in made)
            ]
        )
        reached |= fresh
    return frozenset(reached)


def shown(search: Search, root: Node, quiet: bool) -> tuple[tuple[int, str], ...]:
    """What the paths in the output are made of: directories as spelled, by position, and the name of the source.

    The rest of each path are names in directives, which a closure's digest has
    already. ``quiet`` says that NDEBUG is defined from the start.
    """
    from .search import BESIDE, MEMORY

    found: set[tuple[int, str]] = set()
    wanted = {id(node) for node in _showing(search, quiet)}
    seen: set[int] = set()
    while wanted - seen:
        fresh = wanted - seen
        seen |= fresh
        for node in search.nodes:
            for places in node.edges.values():
                for position, target in places:
                    if id(target) not in fresh:
                        continue
                    if position >= 0:
                        found.add((position, search.spelled[position]))
                    elif position == BESIDE:
                        wanted.add(id(node))
    if id(root) in seen:
        found.add((MEMORY, root.label))
    return tuple(sorted(found))


def _showing(search: Search, quiet: bool) -> list[Node]:
    """The user's files whose path the output may show."""
    mine = [node for node in search.nodes if not node.toolkit]
    # With NDEBUG an assert is nothing, unless a file takes NDEBUG away.
    silent = quiet and not any(node.scan.revives_assert for node in search.nodes)
    nothing = frozenset({"assert"} if silent else ())
    calling = frozenset(scanner.CALLERS)
    calling |= spread(calling, search.macros)
    if any(_mentions(search, node, calling) for node in mine):
        return mine
    own = frozenset(scanner.PLACES) - nothing
    own |= spread(own, search.macros) - nothing
    return [node for node in mine if _mentions(search, node, own)]


def _mentions(search: Search, node: Node, names: frozenset[str]) -> bool:
    if node.scan.mentions & names:
        return True
    rest = names.difference(scanner.CLOCKS, scanner.PLACES, scanner.CALLERS)
    return bool(rest) and bool(scanner.mentioned(rest, *search.text(node, rest)))
