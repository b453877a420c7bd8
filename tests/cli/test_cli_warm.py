"""``hotstart warm``: the script runs as it would, with packages asked for at once; the rest is ``hotstart run``."""

from __future__ import annotations

from pathlib import Path

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[..., tuple[int, str, str]]

SCRIPT = """
import os, sys
print(os.environ["HOTSTART_TORCH_PROMOTE"], *sys.argv[1:], bool(os.environ.get("TORCHINDUCTOR_CACHE_DIR")))
sys.exit(5)
"""


@pytest.fixture(autouse=True)
def promote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSTART_TORCH_PROMOTE", "never")  # what the user has set gives way, and comes back


@pytest.mark.parametrize("options", [[], ["--"], ["--name", "serve", "--quiet"], ["--name=serve", "--"]])
def test_a_script_is_run_with_its_arguments_and_told_to_build_now(
    call: Call, tmp_path: Path, options: list[str]
) -> None:
    script = tmp_path / "serve.py"
    script.write_text(SCRIPT)
    status, out, _ = call("warm", *options, str(script), "--one-request", "-q")
    assert (status, out) == (5, "now --one-request -q True\n")


def test_a_command_that_is_no_script_is_run_as_it_is(call: Call) -> None:
    assert call("warm", "sh", "-c", "echo $HOTSTART_TORCH_PROMOTE") == (0, "now\n", "")


def test_without_a_script_it_says_so(call: Call) -> None:
    status, out, err = call("warm")
    assert (status, out) == (2, "")
    assert "no script was given" in err
