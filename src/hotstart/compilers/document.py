"""Writes docs/compilers.md from the table of frameworks.

python -m hotstart.compilers.document > docs/compilers.md
"""

from __future__ import annotations

from .contract import COMPILED, DOCUMENTED, NEVER
from .frameworks import FRAMEWORKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .contract import Framework

HEAD = """\
# The frameworks, and what is known of their caches

Made from the table in `src/hotstart/compilers/` by `python -m hotstart.compilers.document`; change it there.

`hotstart run` sets the variables in the second column to directories under one root (`…` below) and leaves alone
what the user has set. **Proved by a real compile in CI** means: `tests/frameworks` compiles with the framework in a
fresh process with only this table's environment, runs the same program again, and counts that nothing was compiled,
that no file changed and that nothing was written elsewhere. *Redirected* means that the framework's released code was
run and named our directory, without a compile. **Moved root**: whether a hit survives another root (after the rewriting
that the table names), **moved program** another place of the user's program; both are part of the same tests. **A hit
loads** says what a cache handed over by a stranger could do: a pickle and native code run in the process.
"""

MIDDLE = """
Variables are read at the time in the last column of the first table: what says *import* has to be set before that
package is imported, what says *process start* before the process starts. Locks, logs, temporary files and downloads
are never captured, and not listed below.
"""


def document() -> str:
    """The whole page."""
    rows = [_summary(row) for row in FRAMEWORKS]
    header = (
        *("framework", "variable → directory", "default", "tested with", "proved by a real compile in CI"),
        *("moved root", "moved program", "a hit loads", "read at"),
    )
    lines = [HEAD, *_table(header, rows), MIDDLE]
    for row in FRAMEWORKS:
        lines += ["", *_section(row)]
    return "\n".join(lines) + "\n"


def _summary(row: Framework) -> tuple[str, ...]:
    variables = "<br>".join(f"`{item.name}` → `…/{item.path}`" for item in row.variables) or "none moves it"
    shown = f"{'**yes**' if row.proof == COMPILED else 'redirected'} (`make {row.suite}`)"
    proved = "no, from its documentation" if row.proof == DOCUMENTED else shown
    return (
        f"[{row.title}](#{_anchor(row.title)})" + (" (opt-in)" if row.opt_in else ""),
        variables,
        _place(row.default),
        ", ".join(row.tested) or "–",
        proved,
        _says(row.moves) + (" (rewritten)" if row.moves and row.rewrites else ""),
        _says(row.follows),
        ", ".join(row.trust),
        row.read + (f" of `{row.modules[0]}`" if row.modules else ""),
    )


def _section(row: Framework) -> Iterator[str]:
    yield f"## {row.title}\n"
    yield f"`--only {row.name}`" + (f", found by: {', '.join(row.distributions)}." if row.distributions else ".")
    if row.settings:
        yield "\nSet as well:\n"
        for item in row.settings:
            yield f"- `{item.name}={item.value}`: {item.why}."
    if row.fixed:
        yield "\nUsed whatever is set: " + ", ".join(_place(place) for place in row.fixed) + "."
    yield "\nUnits" + (" (those of one run go together):\n" if row.linked else ":\n")
    yield from _table(
        ("what", "files", "changes"),
        [(item.what, f"`{item.pattern}`", item.changes) for item in row.units if item.changes != NEVER],
    )
    if row.rewrites:
        yield "\nRewritten when moved: " + ", ".join(f"`{item.pattern}`" for item in row.rewrites) + "."
    if row.times:
        yield "\nModification times are part of its key and are kept."
    if row.unkeyed:
        yield "\nNot in its key, so a hit can be wrong after a change of:\n"
        yield from (f"- {item}" for item in row.unkeyed)
    if row.notes:
        yield "\nNotes:\n"
        yield from (f"- {item}" for item in row.notes)


def _table(header: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    header = tuple(header)
    yield "| " + " | ".join(header) + " |"
    yield "|" + " --- |" * len(header)
    for row in rows:
        # A "|" ends a cell in Markdown, even inside code.
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _place(text: str) -> str:
    return f"`{text}`" if text.startswith(("~", "$")) else text


def _says(known: bool | None) -> str:
    return {True: "hit", False: "miss", None: "not tried"}[known]


def _anchor(title: str) -> str:
    """As GitHub makes them: lower case, spaces to dashes, other signs gone."""
    kept = "".join(sign for sign in title.lower() if sign.isalnum() or sign in " -_")
    return kept.replace(" ", "-")


if __name__ == "__main__":
    print(document(), end="")
