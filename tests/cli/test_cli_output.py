"""What people read: sizes, durations, plurals, tables, bars."""

from __future__ import annotations

import io
import sys
import time

import pytest

from hotstart.cli import output, progress
from hotstart.insight import words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"), (0.0001, "0 s"), (0.0123, "12 ms"), (0.1, "0.1 s"), (2.44, "2.4 s"), (9.96, "10 s"),
        (59.6, "1 min"), (61, "1 min 1 s"), (200, "3 min 20 s"), (3600, "1 h"), (7500, "2 h 5 min"),
        (100_000, "1 d 3 h"), (-5, "−5.0 s"),
    ],
)  # fmt: skip
def test_durations(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 entries"), (1, "1 entry"), (2, "2 entries"), (12345, "12,345 entries")]
)
def test_plurals(number: int, said: str) -> None:
    assert words.count(number, "entry", "entries") == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1, "just now"), (30, "30 s ago"), (3599, "59 min ago"), (90_000, "1 d ago"), (-100, "in 1 min")],
)
def test_how_long_ago(seconds: float, said: str) -> None:
    assert words.ago(seconds) == said


def test_impossible_times_do_not_raise() -> None:
    assert words.clock(1e300) == "?"


@pytest.mark.parametrize(("width", "said"), [(20, "abcdefghij"), (5, "ab…ij"), (4, "ab…j"), (3, "abc"), (0, "")])
def test_long_names_lose_their_middle(width: int, said: str) -> None:
    assert words.shorten("abcdefghij", width) == said


def test_columns_are_aligned() -> None:
    shown = output.table(("name", "size"), [("a", "1 B"), ("longer", "10 KiB")], right="<>", total=True)
    assert shown.splitlines() == ["name      size", "a          1 B", "──────  ──────", "longer  10 KiB"]


def test_what_a_terminal_cannot_show_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    output.say("2 → 1")
    assert raw.getvalue() == b"2 ? 1\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """stderr as a terminal. Not a fixture: pytest puts its own stderr back between set-up and test."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    return shown


def test_a_bar_waits_and_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    with progress.Progress("reading", 10) as bar:
        bar.step(10)
    assert shown.getvalue() == ""
    with progress.Progress("reading", 10, patience=0) as bar:
        bar.step(5)
        assert " 50%" in shown.getvalue()
    assert shown.getvalue().endswith("\r\x1b[K")


def test_without_a_total_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    with progress.Progress("reading", patience=0) as bar:
        bar.step(1234)
        assert "reading: 1,234" in shown.getvalue()


def test_more_than_the_total_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    with progress.Progress("reading", 1, patience=0) as bar:
        bar.step(3)
    assert "100%" in shown.getvalue()


def test_waiting_shows_that_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    with progress.Waiting("verifying", patience=0.0):
        deadline = time.monotonic() + 30
        while "verifying" not in shown.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "verifying" in shown.getvalue()
    assert shown.getvalue().endswith("\r\x1b[K")


def test_logs_get_no_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with progress.Progress("reading", 2, patience=0) as bar, progress.Waiting("x", patience=0):
        bar.step()
    assert list(progress.watched(range(3), "reading", 3)) == [0, 1, 2]
    assert log.getvalue() == ""


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_no_stream_is_no_terminal(stream: Any) -> None:
    assert output.coloured(stream) is False
