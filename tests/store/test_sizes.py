"""Sizes: one way to write them, everything else is refused with that way shown."""

from __future__ import annotations

from typing import Any

import pytest

from hotstart import SizeError
from hotstart.store.sizes import parse_size, show_size


@pytest.mark.parametrize(
    ("text", "size"),
    [(1, 1), (4096, 4096), ("4096", 4096), ("1B", 1), ("10KiB", 10240), ("1.5MiB", 1572864), ("2GiB", 2 << 30)],
)
def test_sizes_are_read(text: int | str, size: int) -> None:
    assert parse_size(text, "max_size") == size


@pytest.mark.parametrize(
    "text", ["10 GB", "10GB", "10 GiB", "GiB", "", "-1", -1, "1e9", "١KiB", None, 1.5, True, "10gib"]
)
def test_everything_else_is_refused_with_an_example(text: Any) -> None:
    with pytest.raises(SizeError, match=r"max_size.*GiB"):
        parse_size(text, "max_size")


@pytest.mark.parametrize("text", [0, "0", "0GiB", "0.4B"])
def test_zero_is_refused_unless_it_means_off(text: Any) -> None:
    with pytest.raises(SizeError, match="keep nothing"):
        parse_size(text, "max_size")
    if text != "0.4B":
        assert parse_size(text, "memory", zero=True) == 0


def test_sizes_are_shown() -> None:
    assert [show_size(n) for n in (0, 999, 1500, 150_000, 1 << 30, 5 << 40)] == [
        "0 B", "999 B", "1.5 KiB", "146 KiB", "1.0 GiB", "5.0 TiB",
    ]  # fmt: skip
