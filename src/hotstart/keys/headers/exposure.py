"""What of its surroundings a compile shows in its output: the time, and the paths of files.

Looked for by name: which uses are live is not known (conditions are not evaluated), so each
counts. A name can also be pasted together: where a closure pastes at all and has the pieces
of which a name can be made, it counts as used. Of a few pieces, that is: among the words of
some hundred headers is every letter, and of letters anything can be made. Which words reach
which ## is a question for a whole preprocessor.
"""

from __future__ import annotations

from math import inf

from ...errors import UncacheableError
from .lexer import words
from .marked import CALLERS, CLOCKS, PLACES, QUESTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .search import Node, Search


#: Of how many pieces a name is taken to be made at most: one less than CUTLASS and CCCL have by chance.
_MOST_PIECES = 4
_MOST_PIECES_OF_PLACES = 3


class Pool:
    """The macros of a closure by the words in them, and the words of which a name could be pasted together."""

    def __init__(self, search: Search) -> None:
        self.users: dict[str, list[str]] = {}
        self.pieces: set[str] = set()
        pasting = False
        for name, made in search.macros.items():
            for _, _, body in made:
                pasting = pasting or "##" in body
                for word in set(words(body)):
                    self.users.setdefault(word, []).append(name)
        if pasting:
            self.pieces.update(self.users)
            for node in search.nodes:
                self.pieces.update(node.scan.words)

    def spread(self, names: Iterable[str]) -> frozenset[str]:
        """``names``, and the macros through which one of them can be used, at any remove."""
        reached = set(names)
        fresh = list(reached)
        while fresh:
            for user in self.users.get(fresh.pop(), ()):
                if user not in reached:
                    reached.add(user)
                    fresh.append(user)
        return frozenset(reached)

    def pasted(self, names: Iterable[str], most: int) -> str:
        """One of ``names`` that can be put together from at least two and at most ``most`` pieces; "" when none can."""
        return next((name for name in sorted(names) if _fewest(name, self.pieces) <= most), "") if self.pieces else ""


def _fewest(name: str, pieces: set[str]) -> float:
    """Of how few pieces, two or more, a name can be made. A number may come out of anything the compiler defines."""
    fewest = [0.0] + [inf] * len(name)
    for end in range(1, len(name) + 1):
        for start in range(end):
            piece = name[start:end]
            if fewest[start] < inf and len(piece) < len(name) and (piece in pieces or piece.isdigit()):
                fewest[end] = min(fewest[end], fewest[start] + 1)
    return fewest[-1]


def refuse_clocks(search: Search, pool: Pool) -> None:
    """Raises UncacheableError when a file can put the time into the output, or ask for files in a way nobody sees."""
    clocks = pool.spread(CLOCKS)
    for node in search.nodes:
        if node.scan.words & clocks:
            raise UncacheableError(f"{node.label} puts the time of the compile into the output", "headers")
    made = pool.pasted(clocks, _MOST_PIECES)
    if made:
        raise UncacheableError(f"{made}, with the time of the compile, can be pasted together in it", "headers")
    made = pool.pasted(pool.spread(QUESTIONS).difference(QUESTIONS[1:]), _MOST_PIECES)
    if made:
        raise UncacheableError(f"{made}, which asks for files, can be pasted together in it", "headers")


def shown(search: Search, pool: Pool, root: Node, quiet: bool) -> tuple[tuple[int, str], ...]:
    """What the paths in the output are made of: directories as spelled, by position, and the name of the source.

    The rest of each path are names in directives, which a closure's digest has
    already. ``quiet`` says that NDEBUG is defined from the start.
    """
    from .search import BESIDE, MEMORY

    found: set[tuple[int, str]] = set()
    wanted = {id(node) for node in _showing(search, pool, quiet)}
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


def _showing(search: Search, pool: Pool, quiet: bool) -> list[Node]:
    """The user's files whose path the output may show."""
    mine = [node for node in search.nodes if not node.toolkit]
    # With NDEBUG an assert is nothing, unless a file takes NDEBUG away.
    silent = quiet and not any(node.scan.revives_assert for node in search.nodes)
    nothing = frozenset({"assert"} if silent else ())
    calling = pool.spread(CALLERS)
    own = pool.spread(frozenset(PLACES) - nothing)
    if pool.pasted(calling | own, _MOST_PIECES_OF_PLACES) or any(node.scan.words & calling for node in mine):
        return mine
    return [node for node in mine if node.scan.words & own]
