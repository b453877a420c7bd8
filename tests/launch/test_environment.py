"""Protects what is set for a program and what is left to its user, and that the locale stays the user's."""

from __future__ import annotations

import os
import subprocess

import pytest

import hotstart
from hotstart.compilers.frameworks import FRAMEWORKS, environment, framework
from hotstart.launch.environment import directories, exports, plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from tests.launch.launching import HOTSTART, Place
else:
    from launching import HOTSTART, Place


def test_everything_the_table_says_is_set() -> None:
    made = plan("/root", {})
    assert made.variables == environment("/root")
    assert made.left == {}
    assert {row.name for row in made.rows} == {row.name for row in FRAMEWORKS if row.variables and not row.opt_in}


@pytest.mark.parametrize("value", ["/mine", ""])
def test_who_has_chosen_a_directory_keeps_it_and_all_that_goes_with_it(value: str) -> None:
    made = plan("/root", {"TORCHINDUCTOR_CACHE_DIR": value})
    assert made.left == {"torch": ["TORCHINDUCTOR_CACHE_DIR"]}
    assert "torch" not in [row.name for row in made.rows]
    for setting in framework("torch").settings:
        assert setting.name not in made.variables
    assert "TRITON_CACHE_DIR" in made.variables


def test_a_setting_of_the_user_stays_and_the_rest_is_set() -> None:
    made = plan("/root", {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "5"})
    assert made.left == {"jax": ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"]}
    assert "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in made.variables
    assert made.variables["JAX_COMPILATION_CACHE_DIR"] == "/root/jax"


def test_our_own_values_are_nobodys_choice() -> None:
    """A nested run finds what the outer one has set."""
    assert plan("/root", environment("/root")).left == {}


def test_forced_everything_is_set() -> None:
    made = plan("/root", {"TORCHINDUCTOR_CACHE_DIR": "/mine"}, force=True)
    assert made.variables == environment("/root")
    assert made.left == {}


def test_only_the_named_frameworks() -> None:
    made = plan("/root", {}, ["triton", "nvcc"])
    assert {row.name for row in made.rows} == {"triton", "nvcc"}
    with pytest.raises(hotstart.UsageError, match="there are torch"):
        plan("/root", {}, ["tritn"])


def test_the_program_sees_it_and_the_record_says_what_was_left(place: Place) -> None:
    done = place.sh(
        'echo "$TRITON_CACHE_DIR|$TORCHINDUCTOR_CACHE_DIR"; mkdir -p "$TRITON_CACHE_DIR/A";'
        'echo > "$TRITON_CACHE_DIR/A/x"',
        env={"TORCHINDUCTOR_CACHE_DIR": "/mine"},
    )
    assert done.stdout == f"{place.root}/triton|/mine\n"
    assert place.record()["frameworks"]["torch"]["left_alone"] == ["TORCHINDUCTOR_CACHE_DIR"]


def test_a_dry_run_shows_and_starts_nothing(place: Place) -> None:
    done = place.run("--dry-run", "touch", str(place.path / "ran"), env={"TRITON_CACHE_DIR": "/mine"})
    assert done.returncode == 0
    assert f"TORCHINDUCTOR_CACHE_DIR={place.root}/torch/inductor" in done.stdout
    assert "TRITON_CACHE_DIR stay" in done.stdout
    assert not (place.path / "ran").exists()


def test_exports_are_what_a_run_would_set(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment("/"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOTSTART_HOME", str(place.home))
    assert exports() == environment(str(place.root))
    assert exports(["triton"]) == {"TRITON_CACHE_DIR": f"{place.root}/triton"}
    assert place.root.is_dir()
    monkeypatch.setenv("HOTSTART_DISABLE", "1")
    assert exports() == {}


def test_directories_that_others_can_write_are_not_used(tmp_path: Path) -> None:
    """They hold code that gets run."""
    (tmp_path / "frameworks").mkdir()
    (tmp_path / "frameworks").chmod(0o777)
    root = directories(str(tmp_path))
    assert root == f"{tmp_path}/frameworks/hotstart-{os.geteuid()}"
    assert os.stat(root).st_mode & 0o777 == 0o700


#: (what the user has, what the child must have)
LOCALES: list[dict[str, str]] = [
    {},
    {"LANG": "C"},
    {"LC_CTYPE": "C"},
    {"LC_CTYPE": "C.UTF-8"},
    {"LC_CTYPE": "POSIX", "LANG": "C"},
    {"LC_ALL": "C"},
    {"LANG": "C.UTF-8"},
    {"LC_CTYPE": "en_US.UTF-8", "LANG": "de_DE.UTF-8"},
]


@pytest.mark.parametrize("locale", LOCALES, ids=str)
def test_the_locale_is_the_users(locale: dict[str, str], place: Place) -> None:
    """Python coerces LC_CTYPE in a plain C locale, and a child would inherit that."""
    base = {name: value for name, value in place.environ.items() if name != "LANG"}
    command = ["sh", "-c", 'echo "${LC_CTYPE-unset} ${LC_ALL-unset} ${LANG-unset}"']
    directly = subprocess.run(command, env=base | locale, capture_output=True, check=True).stdout
    under = subprocess.run([*HOTSTART, "run", *command], env=base | locale, capture_output=True, check=True).stdout
    assert under == directly
