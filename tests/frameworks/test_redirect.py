"""Protects the rows that are redirected and not compiled with: the variable is the one that the released code reads.

The file of the package that decides where its cache goes is run by itself, because
the package around it wants a GPU and fifty dependencies. ``pip install --no-deps``
is enough.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys

import pytest

from hotstart.compilers.contract import REDIRECTED
from hotstart.compilers.frameworks import FRAMEWORKS, environment, framework

#: For each row the file that decides, and for each of its variables what the file makes of it.
DECIDES = {
    "vllm": ("vllm/envs.py", {"VLLM_CACHE_ROOT": "module.VLLM_CACHE_ROOT"}),
    "sglang": (
        "sglang/srt/environ.py",
        {
            "SGLANG_CACHE_DIR": "module.envs.SGLANG_CACHE_DIR.get()",
            "SGLANG_JIT_CACHE_DIR": "module.envs.SGLANG_JIT_CACHE_DIR.get()",
            "SGLANG_DG_CACHE_DIR": "module.envs.SGLANG_DG_CACHE_DIR.get()",
        },
    ),
}

PROGRAM = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("decides", sys.argv[1])
module = sys.modules["decides"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps([eval(expression) for expression in sys.argv[2:]]))
"""


def asked(name: str, variables: dict[str, str]) -> dict[str, str]:
    """What the released code of ``name`` makes of its variables, in a process with these."""
    path, expressions = DECIDES[name]
    distribution = framework(name).distributions[0]
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed: pip install --no-deps {distribution} (make test-all does)")
    found = next(file for file in files if str(file) == path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(found.locate()), *expressions.values()],
        env={"PATH": os.environ["PATH"], "HOME": "/home/somebody", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(expressions, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", DECIDES)
def test_released_code_names_our_directories(name: str) -> None:
    assert asked(name, environment("/somewhere")) == {
        variable.name: f"/somewhere/{variable.path}" for variable in framework(name).variables
    }


@pytest.mark.parametrize("name", DECIDES)
def test_without_our_variables_it_names_its_default(name: str) -> None:
    default = framework(name).default.replace("~", "/home/somebody")
    places = [place for place in asked(name, {}).values() if place is not None]
    assert places
    assert all(place == default or place.startswith(default + "/") for place in places)


def test_every_row_that_claims_it_is_here() -> None:
    assert {row.name for row in FRAMEWORKS if row.proof == REDIRECTED} == set(DECIDES)
