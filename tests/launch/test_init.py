"""Protects ``hotstart.init()``: before the frameworks are imported it is as good as ``hotstart run``, after that it
says so."""

from __future__ import annotations

import json
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.launch.launching import Place
else:
    from launching import Place

WRITE = """
import os
os.makedirs(os.environ["TRITON_CACHE_DIR"] + "/AAA", exist_ok=True)
with open(os.environ["TRITON_CACHE_DIR"] + "/AAA/k.cubin", "w") as file:
    file.write("machine code")
"""
INIT = "import json\nfrom hotstart.launch.init import init\nwhere = init()\n"


def program(place: Place, text: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text], env=place.environ | env, capture_output=True, text=True, check=False
    )


def test_it_returns_where_each_framework_went_and_keeps_what_it_compiles(place: Place) -> None:
    done = program(place, INIT + WRITE + "print(json.dumps(where))")
    assert done.returncode == 0, done.stderr
    where = json.loads(done.stdout)
    assert where["triton"] == f"{place.root}/triton"
    assert where["torch"] == f"{place.root}/torch/inductor"
    place.wipe()
    done = program(place, INIT + "import os; print(os.listdir(where['triton']))")
    assert done.stdout == "['AAA']\n", done.stderr
    assert place.record()["frameworks"]["triton"]["restored"] == 1


def test_what_was_imported_before_is_named(place: Place) -> None:
    done = program(
        place, "import sys, types\nsys.modules['jax'] = types.ModuleType('jax')\n" + INIT + "print('jax' in where)"
    )
    assert done.stdout == "False\n"
    assert "JAX was imported (jax) before hotstart.init()" in done.stderr
    assert done.stderr.count("\n") == 1


def test_under_run_capturing_is_left_to_it(place: Place) -> None:
    done = place.run(sys.executable, "-c", INIT + WRITE)
    assert (done.returncode, done.stderr) == (0, "")
    assert [unit["event"] for unit in place.record()["units"]] == ["new"]
    assert len(list((place.home / "runs").iterdir())) == 1


def test_a_forked_child_does_not_capture(place: Place) -> None:
    fork = "\nimport sys\npid = os.fork()\nif pid == 0: sys.exit(0)\nos.waitpid(pid, 0)\n"
    done = program(place, INIT + WRITE + fork + f"print(os.path.exists({str(place.home / 'runs')!r}))")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
    assert len(list((place.home / "runs").iterdir())) == 1


def test_without_a_place_or_turned_off_the_program_goes_on(place: Place) -> None:
    place.home.write_text("a file")
    done = program(place, INIT + "print(where)")
    assert done.stdout == "{}\n"
    assert done.stderr.count("\n") == 1
    done = program(place, INIT + "print(where)", HOTSTART_DISABLE="1")
    assert (done.stdout, done.stderr) == ("{}\n", "")


def test_twice_is_once(place: Place) -> None:
    done = program(place, INIT + "again = init(); print(where == again)" + WRITE)
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert len(list((place.home / "runs").iterdir())) == 1
