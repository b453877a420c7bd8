"""What the stress tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hotstart.store import entry


@pytest.fixture(autouse=True)
def _guarded(hang_guard: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HOTSTART_LOG", "off")
    yield


@pytest.fixture
def small_blobs(monkeypatch: pytest.MonkeyPatch) -> int:
    """Artifacts above 4 KiB become blobs, so that much can happen to them in little time."""
    monkeypatch.setattr(entry, "INLINE_LIMIT", 4096)
    return 4097
