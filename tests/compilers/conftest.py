"""What the tests of the compilers share: a cache of their own, and real NVRTC run without any cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import hotstart
from hotstart.keys import headers


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[hotstart.Cache]:
    with hotstart.Cache(tmp_path / "store") as opened:
        yield opened


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memos and redirected files under this test's own directory; its own working directory, too."""
    monkeypatch.setenv("HOTSTART_HOME", str(tmp_path / "home"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    headers.forget()


@pytest.fixture
def fresh() -> Callable[..., dict[str, bytes]]:
    """NVRTC with no cache in between: what the cached result has to equal."""
    from hotstart.compilers import nvrtc

    def run(
        source: str,
        arch: str = "sm_90",
        options: Sequence[str] = (),
        targets: tuple[str, ...] = ("ptx",),
        headers: dict[str, str] | None = None,
        name_expressions: Sequence[str] = (),
    ) -> dict[str, bytes]:
        given = [f"--gpu-architecture={arch}", *options]
        made = nvrtc._compile(source.encode(), given, headers, name_expressions, "default_program", targets)
        return {name: bytes(data) for name, data in made.artifacts.items()}

    return run
