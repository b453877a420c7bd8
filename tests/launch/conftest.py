"""``place``: a home of its own for ``hotstart run``."""

from __future__ import annotations

from pathlib import Path

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.launch.launching import Place
else:
    from launching import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
