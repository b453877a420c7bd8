"""The fault matrix: one row per fault and operation, printed at the end of the run.

``HOTSTART_FAULT_TABLE`` names a file the table is also written to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from hotstart import Key
from hotstart.keys.digest import digest_of
from hotstart.store import entry, gc

#: What must never happen, counted per cell.
HARMS = ("wrong", "raised", "lost", "leaked", "accounts", "broken")

_LEGEND = """\
wrong     bytes served that were never put under that key
raised    exceptions out of the cache for what the disk did
lost      entries gone although their put had returned True and no eviction was due
leaked    descriptors or temporary files left behind
accounts  the ledger below the truth at any time, or not equal to it after gc()
broken    the store does not work again once the fault is gone"""

_cells: dict[tuple[str, str], Cell] = {}


class Cell:
    """One fault under one operation: how often it was run and what went wrong."""

    def __init__(self, fault: str, operation: str) -> None:
        self.fault = fault
        self.operation = operation
        self.runs = 0
        self.harms = dict.fromkeys(HARMS, 0)
        self.examples: list[str] = []

    def harm(self, kind: str, example: str) -> None:
        self.harms[kind] += 1
        if len(self.examples) < 12:
            self.examples.append(f"{kind}: {example}")

    def check(self, at_least: int = 1) -> None:
        """Fails the test if anything went wrong, or if the cell was not really run."""
        __tracebackhide__ = True
        if any(self.harms.values()):
            pytest.fail(f"{self.fault}, {self.operation}: {self.harms}\n" + "\n".join(self.examples), pytrace=False)
        assert self.runs >= at_least, f"{self.fault}, {self.operation}: only {self.runs} runs"


@pytest.fixture
def cell() -> Callable[[str, str], Cell]:
    """``cell(fault, operation)``: the same cell for the same words."""

    def find(fault: str, operation: str) -> Cell:
        return _cells.setdefault((fault, operation), Cell(fault, operation))

    return find


@pytest.fixture(autouse=True)
def _guarded(hang_guard: None) -> Iterator[None]:
    yield


@pytest.fixture
def small_blobs(monkeypatch: pytest.MonkeyPatch) -> int:
    """Artifacts above 4 KiB become blobs, so that thousands of runs with blobs move little data."""
    monkeypatch.setattr(entry, "INLINE_LIMIT", 4096)
    return 4097


@pytest.fixture
def few_directories(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterable[Key], Iterable[bytes]], None]:
    """``few_directories(keys, blobs)``: ``gc`` visits only the directories these can be in.

    The rest of the 256 are empty and alike, and visiting them would be most of the time of a run.
    """

    def narrow(keys: Iterable[Key], blobs: Iterable[bytes]) -> None:
        digests = [*(key.digest for key in keys), *map(digest_of, blobs)]
        monkeypatch.setattr(gc, "_PAIRS", sorted({digest[:2] for digest in digests}))

    return narrow


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _cells:
        return
    table = render()
    terminalreporter.section("fault matrix")
    terminalreporter.write_line(table)
    path = os.environ.get("HOTSTART_FAULT_TABLE")
    if path:
        Path(path).write_text(table + "\n", encoding="utf-8")


def render() -> str:
    """The table as text."""
    width = max(len(cell.fault) for cell in _cells.values())
    wide = max(len(cell.operation) for cell in _cells.values())
    head = f"{'fault':<{width}}  {'operation':<{wide}}  {'runs':>6}" + "".join(f"{harm:>10}" for harm in HARMS)
    lines = [head, "-" * len(head)]
    total = Cell("total", "")
    for cell in _cells.values():
        lines.append(_row(cell, width, wide))
        total.runs += cell.runs
        for harm, count in cell.harms.items():
            total.harms[harm] += count
    return "\n".join([*lines, "-" * len(head), _row(total, width, wide), "", _LEGEND])


def _row(cell: Cell, width: int, wide: int) -> str:
    counts = "".join(f"{cell.harms[harm]:>10}" for harm in HARMS)
    return f"{cell.fault:<{width}}  {cell.operation:<{wide}}  {cell.runs:>6}{counts}"
