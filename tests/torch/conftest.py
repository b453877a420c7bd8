"""Packages that are built once: by the first test that needs them, and kept for later runs of the same code.

Building one takes half a minute of a processor. They lie in pytest's own cache under a
digest of hotstart's code for torch, so a changed line of it builds them anew.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hotstart.cache import Cache
from hotstart.keys.digest import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torch.hot_children import RANKS, child, start_ranks, wait_for_the_helper
    from tests.torch.hot_staging import Plain, Stage, staged
else:
    from hot_children import RANKS, child, start_ranks, wait_for_the_helper

pytest.importorskip("torch", reason="needs torch (any build, no GPU)")
if not TYPE_CHECKING:
    from hot_staging import Plain, staged

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "hotstart" / "torch"

WARM = """
import sys, torch
import hotstart.torch
import hot_models as models

def build(name, target, *args, **kwargs):
    with torch.no_grad():
        said = hotstart.torch.warm(target, *args, **kwargs)
    print(name, said["event"], said["reason"])
    return said["event"] in ("published", "hit")

good = True
if "former" in sys.argv:
    good &= build("former", models.former(), models.tokens())
if "conv" in sys.argv:
    good &= build("conv", models.conv(), models.image(), double=True)
if "function" in sys.argv:
    x, y = models.matrices()
    hotstart.torch.mark_dynamic(x, 0, max=64)
    good &= build("function", models.plain_function, x, y, power=3)
sys.exit(0 if good else 1)
"""


@pytest.fixture(scope="session")
def home(request: pytest.FixtureRequest) -> Path:
    """A HOTSTART_HOME that outlives the run."""
    code = b"".join(path.read_bytes() for path in sorted(SOURCE.glob("*.py")))
    return Path(request.config.cache.mkdir(f"hotstart-torch-{digest_of(code)[:16]}"))


@pytest.fixture(scope="session")
def built(home: Path) -> Callable[[str], Path]:
    """``built("former")``: the home, with that package in it."""
    done: set[str] = set()

    def build(name: str) -> Path:
        if not done:  # all of them by one process: importing torch and Dynamo is a third of the work
            with open(home / "building", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                run = child(home, WARM, "former", "conv", "function")
                assert run.returncode == 0, run.stdout + run.stderr
            done.update(("former", "conv", "function"))
        assert name in done
        return home

    return build


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home on which eight ranks have started together; they are gone, the helper they left is done."""
    home = tmp_path_factory.mktemp("ranks")
    start_ranks(home, RANKS)
    said = wait_for_the_helper(home)
    assert said["event"] == "published", said
    return home


@pytest.fixture
def cache_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Cache]:
    """The store of a home, opened in this process; records of this process go to that home too."""

    def opened(home: Path) -> Cache:
        monkeypatch.setenv("HOTSTART_HOME", str(home))
        return Cache(f"{home}/store")

    return opened


@pytest.fixture
def hot(cache_of: Callable[[Path], Cache], built: Callable[[str], Path]) -> Callable[..., Any]:
    """``hot(name, target)``: the target compiled over the store that has that package, and its ``Plain``."""
    import hotstart.torch

    def compiled(name: str, target: Any, **arguments: Any) -> tuple[Any, Plain]:
        made = hotstart.torch.compile(target, cache=cache_of(built(name)), promote="never", **arguments)
        plain = Plain(target)
        made._engine._plain = plain
        return made, plain

    return compiled


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A store of its own, and packages that are made in half a second."""
    monkeypatch.setenv("HOTSTART_HOME", str(tmp_path))
    return staged(Cache(f"{tmp_path}/store"), monkeypatch)
