"""Protects the promise of ``hotstart run`` with the real frameworks: what it took in is given back after the
directories were deleted, under another user name and HOME, and, where the table says so, at another place; and the
second program compiles nothing.
"""

from __future__ import annotations

import os
import shutil
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from tests.frameworks.laboratory import Proof, World
else:
    from laboratory import World

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
