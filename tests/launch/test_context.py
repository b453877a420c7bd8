"""What is noted of a run: complete enough to explain a miss, without secrets, without starting anything."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from hotstart.launch import context, program, sources
from hotstart.launch.context import HIDDEN, gather
from hotstart.launch.records import read, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "train.py").write_text("import model\n")
    (place / "model.py").write_text("x = 1\n")
    (place / "unused.py").write_text("y = 1\n")
    (place / "data.bin").write_text("not a source")
    (place / "csrc").mkdir()
    (place / "csrc" / "kernel.cuh").write_text("#pragma once\n")
    monkeypatch.chdir(place)
    return place


def python(*arguments: str, **environ: str) -> dict[str, Any]:
    return gather([sys.executable, *arguments], {"PATH": os.environ["PATH"], **environ})


def test_a_program_is_its_files(here: Path) -> None:
    noted = python("-u", "-X", "dev", "train.py", "--lr", "3")
    assert noted["program"] == "train.py"
    assert noted["arguments"] == ["--lr", "3"]
    assert set(noted["sources"]) == {"train.py", "model.py"}
    assert set(noted["beside"]) == {"csrc/kernel.cuh", "unused.py"}
    (here / "model.py").write_text("x = 2\n")
    again = python("train.py")
    changed = {name for name in noted["sources"] if again["sources"][name] != noted["sources"][name]}
    assert changed == {"model.py"}


def test_what_is_noted_is_what_the_interpreter_says_of_itself(here: Path) -> None:
    """Read off directories, and compared with the interpreter's own answer, from inside it."""
    noted = python("train.py")
    code = (
        "import sys, importlib.metadata as m\n"
        "print(sys.version.split()[0])\n"
        "for d in m.distributions(): print(d.metadata['Name'].lower().replace('_', '-').replace('.', '-'), d.version)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")
    assert noted["python"] == said[0]
    installed = dict(line.split() for line in said[1:] if line)
    assert noted["packages"].items() >= {
        (name, installed[name]) for name in ("pytest", "blake3", "xxhash") if name in installed
    }
    assert noted["packages"].keys() <= installed.keys()


def test_another_interpreter_has_packages_of_its_own(tmp_path: Path, here: Path) -> None:
    venv.create(tmp_path / "other", symlinks=True)
    site = next((tmp_path / "other" / "lib").glob("python3*/site-packages"))
    (site / "torch-9.9.0.dist-info").mkdir()
    noted = gather([str(tmp_path / "other" / "bin" / "python"), "train.py"], {}, ["torch"])
    assert noted["packages"] == {"torch": "9.9.0"}
    assert noted["places"] == {"torch": str(site)}
    assert noted["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["-m", "model", "--x"], "-m model"),
        (["-mmodel"], "-m model"),
        (["train.py"], "train.py"),
        (["-"], "-"),
        ([], "python"),
    ],
)
def test_ways_to_name_a_program(here: Path, words: list[str], name: str) -> None:
    assert python(*words)["program"] == name


def test_code_on_the_command_line_is_known_by_its_digest_alone(here: Path) -> None:
    noted = python("-c", "password = 'hunter2'")
    assert noted["program"].startswith("-c ")
    assert "hunter2" not in str(noted)
    assert noted["program"] != python("-c", "password = 'hunter3'")["program"]


def test_a_console_script_is_python(here: Path, tmp_path: Path) -> None:
    script = tmp_path / "torchrun"
    script.write_text(f"#!{sys.executable}\nprint()\n")
    script.chmod(0o755)
    noted = gather([str(script), "--nproc=2", "train.py"], {})
    assert noted["program"] == "torchrun"
    assert "packages" in noted
    assert {"torchrun", "train.py", "model.py"} <= set(noted["sources"])


def test_behind_a_wrapper_the_python_is_found(here: Path) -> None:
    noted = gather(["env", "A=1", sys.executable, "train.py"], {"PATH": os.environ["PATH"]})
    assert noted["program"] == "train.py"
    assert "blake3" in noted["packages"]


@pytest.mark.parametrize("command", [["true"], ["/nowhere/at/all"], [], [""], ["./train.py"], ["sh", "-c", "x"]])
def test_whatever_the_command_is_there_is_an_answer(here: Path, command: list[str]) -> None:
    noted = gather(command, {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "3"})
    assert noted["threads"] == 3
    assert write(str(here / "home"), {"name": "x", "context": noted})


def test_without_a_working_directory_there_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert gather([sys.executable, "x.py"], {})["program"] == "x.py"


def test_values_of_other_variables_are_never_noted(here: Path) -> None:
    secret = "s3cr3t-value"
    environ = dict.fromkeys(
        (
            *("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "WANDB_API_KEY", "MY_THING", "HOME_PASSWORD", "VLLM_API_KEY"),
            *("TORCH_TOKEN", "TORCHINDUCTOR_REDIS_PASSWORD", "JAX_SECRET", "TRITON_AUTH_HEADER", "SGLANG_ACCESS_KEY"),
            *("XLA_URL", "CUDA_LICENSE_KEY_FILE"),
        ),
        secret,
    )
    environ["TRITON_REMOTE"] = f"redis://user:{secret}@host"
    assert secret not in str(gather([sys.executable, "train.py"], environ))
    assert gather(["true"], environ)["env"]["VLLM_API_KEY"] == HIDDEN


def test_a_key_that_is_no_secret_is_noted() -> None:
    assert not context.is_secret("TORCH_COMPILE_CACHE_KEY_TAG")
    assert gather(["true"], {"TORCH_COMPILE_CACHE_KEY_TAG": "v2"})["env"] == {"TORCH_COMPILE_CACHE_KEY_TAG": "v2"}


@pytest.mark.parametrize(
    ("given", "noted"),
    [
        (["--token", "abc", "x"], ["--token", HIDDEN, "x"]),
        (["--hf-token=abc"], [f"--hf-token={HIDDEN}"]),
        (["--api-key", "abc"], ["--api-key", HIDDEN]),
        (["--password", "--flag"], ["--password", "--flag"]),
        (["PASSWORD=abc"], [f"PASSWORD={HIDDEN}"]),
        (["s3://user:pw@host/x"], [f"s3://{HIDDEN}@host/x"]),
        (["--tokens-per-second", "3"], ["--tokens-per-second", HIDDEN]),
        (["sh", "-c", "curl -u me:pw"], ["sh", "-c", "(code)"]),
        (["--keyframes", "3", "a@b://"], ["--keyframes", "3", "a@b://"]),
    ],
)
def test_arguments_that_follow_a_secrets_name_are_hidden(given: list[str], noted: list[str]) -> None:
    assert context.hide(given) == noted


def test_our_own_directories_are_not_part_of_it() -> None:
    environ = {"TRITON_CACHE_DIR": "/home/me/hot/dirs/triton", "TORCHINDUCTOR_CACHE_DIR": "/mine"}
    assert gather(["true"], environ, root="/home/me/hot")["env"] == {"TORCHINDUCTOR_CACHE_DIR": "/mine"}


def test_a_home_inside_the_project_is_no_source(here: Path) -> None:
    (here / "home" / "frameworks" / "torch").mkdir(parents=True)
    (here / "home" / "frameworks" / "torch" / "generated.py").write_text("")
    noted = gather([sys.executable, "train.py"], {}, root=str(here / "home" / "frameworks"))
    assert set(noted["beside"]) == {"csrc/kernel.cuh", "unused.py"}


@pytest.mark.parametrize(("text", "threads"), [("4", 4), ("4,2", 4), ("", 0), ("many", 0), ("0", 0)])
def test_threads_are_those_of_openmp(text: str, threads: int) -> None:
    noted = gather(["true"], {"OMP_NUM_THREADS": text})
    assert noted["threads"] == (threads or noted["cpus"])


def test_a_large_tree_is_bounded_and_says_so(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_FILES", 3)
    for n in range(10):
        (here / f"module{n}.py").write_text("")
    noted = python("train.py")
    assert len(noted["sources"]) + len(noted["beside"]) == 3
    assert noted["sources_left_out"]


def test_a_home_directory_is_not_walked(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    noted = python("train.py")
    assert set(noted["sources"]) == {"train.py", "model.py"}
    assert noted["beside"] == {}
    assert noted["sources_left_out"]


def test_loops_pipes_and_environments_in_the_tree_are_passed_over(here: Path) -> None:
    (here / "again").symlink_to(here)
    os.mkfifo(here / "pipe.py")
    (here / "own").mkdir()
    (here / "own" / "pyvenv.cfg").write_text("")
    (here / "own" / "library.py").write_text("")
    noted = python("train.py")
    assert not [name for name in {**noted["sources"], **noted["beside"]} if "library" in name or "pipe" in name]


IMPORTS = """
import os, a, b.c as d  # comment
from e import f as g
from . import h
from .i import (j,  # one
    k as l,
)
from ..m import n, \\
    o
    import p; import q
def x(): from r import *
notimport s
"""


def test_imports_are_read_off_the_text() -> None:
    assert list(sources.imports(IMPORTS)) == [
        ("os", []), ("a", []), ("b.c", []), ("e", ["f"]), (".", ["h"]), (".i", ["j", "k"]), ("..m", ["n", "o"]),
        ("p", []),
    ]  # fmt: skip


def test_what_is_imported_is_followed_through_packages(here: Path) -> None:
    package = here / "net" / "blocks"
    package.mkdir(parents=True)
    (here / "train.py").write_text("def main():\n    from net import blocks\n    import net.optim as o\n")
    (here / "net" / "__init__.py").write_text("")
    (here / "net" / "optim.py").write_text("from .blocks.attention import Attention\n")
    (package / "__init__.py").write_text("from ..common import (\n    width,\n)\n")
    (package / "attention.py").write_text("import train\n")
    (here / "net" / "common.py").write_text("width = 8\n")
    (here / "net" / "unused.py").write_text("")
    assert set(python("train.py")["sources"]) == {
        "train.py", "net/__init__.py", "net/optim.py", "net/blocks/__init__.py", "net/blocks/attention.py",
        "net/common.py",
    }  # fmt: skip
    assert "net/common.py" in python("-c", "import net.blocks")["sources"]
    assert "net/common.py" in python("-m", "net.blocks")["beside"]


@pytest.fixture
def unread(here: Path) -> Iterator[Path]:
    (here / "model.py").chmod(0)
    yield here
    (here / "model.py").chmod(0o600)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything; needs an ordinary user")
def test_a_file_that_cannot_be_read_is_left_out(unread: Path) -> None:
    assert "model.py" not in python("train.py")["sources"]


def test_a_pyenv_shim_leads_to_the_interpreter_it_would_start(tmp_path: Path, here: Path) -> None:
    root = tmp_path / "pyenv"
    (root / "shims").mkdir(parents=True)
    shim = root / "shims" / "python"
    shim.write_text("#!/usr/bin/env bash\n")
    shim.chmod(0o755)
    (root / "version").write_text("3.12.4\n")
    real = root / "versions" / "3.12.4" / "bin" / "python"
    (root / "versions" / "3.12.4" / "lib" / "python3.12" / "site-packages" / "jax-0.9.dist-info").mkdir(parents=True)
    real.parent.mkdir()
    real.write_text("")
    noted = gather(["python", "train.py"], {"PATH": str(shim.parent)})
    assert noted["packages"] == {"jax": "0.9"}
    assert noted["python"] == "3.12"


def test_a_context_is_plain_data(here: Path) -> None:
    noted = python("train.py")
    kept = {"name": "x", "context": noted}
    write(str(here / "home"), kept)
    assert read(str(here / "home"), str(kept["id"])) == kept


@pytest.mark.parametrize(
    ("name", "answer"),
    [("python", True), ("python3.12", True), ("python3.13t", True), ("pypy3", True), ("pythonista", False)],
)
def test_interpreters_are_known_by_name(name: str, answer: bool) -> None:
    assert program.is_python(f"/usr/bin/{name}") is answer
