"""Protects the promise of ``hotstart run`` with the real frameworks: what it took in is given back after the
directories were deleted, under another user name and HOME, and, where the table says so, at another place; and the
second program compiles nothing.
"""

from __future__ import annotations

import os
import shutil
import sys

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from tests.frameworks.cases import CASES
    from tests.frameworks.laboratory import HERE, Proof, World, lacking
else:
    from cases import CASES
    from laboratory import HERE, World, lacking

HOTSTART = (sys.executable, "-c", "import sys; from hotstart.cli.main import main; sys.exit(main())", "run")


def test_a_second_run_compiles_nothing_though_the_directories_were_deleted(proof: Proof, tmp_path: Path) -> None:
    case = proof.case
    world = World(tmp_path / "world", case)
    home = tmp_path / "hotstart"
    world.launcher = HOTSTART + (("--only", case.row.name) if case.row.opt_in else ())
    world.more = {"HOTSTART_HOME": str(home)}

    first = world.run(redirected=False)
    assert first.compiles > 0

    shutil.rmtree(home / "frameworks")
    shutil.rmtree(world.temporary)
    world.temporary.mkdir()
    if not case.row.fixed or case.row.variables:
        world.home = tmp_path / "another-home"
        world.home.mkdir()
    world.more |= {"USER": "another", "LOGNAME": "another"}
    second = world.run(redirected=False)
    assert (second.compiled, second.processes) == (0, ())

    moved = tmp_path / "elsewhere" / "hotstart"
    moved.parent.mkdir()
    os.rename(home, moved)
    shutil.rmtree(moved / "frameworks")
    world.more["HOTSTART_HOME"] = str(moved)
    third = world.run(redirected=False)
    assert (third.compiles == 0) is case.row.moves


def test_jax_finds_again_what_was_torn_under_it(tmp_path: Path) -> None:
    """JAX warns of a torn file at every start, compiles, and never writes it again: one more compile, and no more."""
    case = next(case for case in CASES if case.framework == "jax")
    if lacking(case):
        pytest.skip(lacking(case))
    world = World(tmp_path / "world", case)
    world.launcher = HOTSTART
    world.more = {"HOTSTART_HOME": str(tmp_path / "hotstart")}
    first = world.run(redirected=False)
    kept = sorted((tmp_path / "hotstart" / "frameworks" / "jax").glob("*-cache"))
    assert len(kept) == first.compiled
    os.truncate(kept[0], 20)
    torn = world.run(redirected=False)
    assert torn.reused == first.compiled - 1
    again = world.run(redirected=False)
    assert (again.compiled, again.reused) == (0, first.compiled)


def test_torch_at_another_install_path_builds_nothing_again(tmp_path: Path) -> None:
    """Its kernels are named by a command line that holds the path of site-packages."""
    case = next(case for case in CASES if case.framework == "torch")
    if lacking(case):
        pytest.skip(lacking(case))
    import torch

    world = World(tmp_path / "world", case)
    # However small the model: asking torch for the names of two kernels takes longer than building them.
    eager = HOTSTART[2].replace("sys.exit", "import hotstart.launch.restore as r; r.ASKING = 0.0; sys.exit")
    world.launcher = (*HOTSTART[:2], eager, "run")
    world.more = {"HOTSTART_HOME": str(tmp_path / "hotstart")}
    assert world.run(redirected=False).compiles > 0
    shutil.rmtree(tmp_path / "hotstart" / "frameworks")
    link = tmp_path / "another-place"
    link.symlink_to(os.path.dirname(os.path.dirname(torch.__file__)))
    world.more["PYTHONPATH"] = os.pathsep.join([str(link), str(HERE / "watch")])
    elsewhere = world.run(redirected=False)
    assert (elsewhere.compiled, elsewhere.processes) == (0, ())
    # And what was given another name is known by it from now on.
    shutil.rmtree(tmp_path / "hotstart" / "frameworks")
    world.launcher = HOTSTART
    elsewhere = world.run(redirected=False)
    assert (elsewhere.compiled, elsewhere.processes) == (0, ())
