"""No secret of a remote is printed, logged, counted or kept: by no command, error, traceback, record or file.

One password, with everything in it that a careless split would trip over, and the secrets of the other kinds
of remote, are set; then everything is called that could show them, and all that it printed and wrote is searched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Parts of the secrets: a comma ends a URL of a chain, a slash a host, an @ a password, unless somebody is careful.
PARTS = ["hunter", "tertwo", "fourth", "aws-session-word", "aws-secret-word", "azure-secret-word"]
REMOTE = "redis://user:hunter,tertwo@fourth@127.0.0.1:9/0?timeout=1,s3://team/x?endpoint=http://127.0.0.1:9&timeout=1"

HOTSTART = [sys.executable, "-c", "import sys; from hotstart.cli.main import main; sys.exit(main())"]

COMPILE = """
import hotstart, json, sys, traceback
cache = hotstart.open()
entry = cache.get_or_compile(hotstart.Key("test", name="k"), lambda: {"x": b"1"})
print(json.dumps(cache.stats(), default=str), repr(cache), repr(cache.sharing), repr(cache.sharing.tier.remotes))
for remote in cache.sharing.tier.remotes:
    try:
        remote.inner.get("a", 1)
    except Exception:
        traceback.print_exc()
hotstart.Cache(None, remote="redis://user:hunter,tertwo@fourth@127.0.0.1:nine/0").get(hotstart.Key("test", name="k"))
cache.close()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "home").mkdir()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path),
        "HOTSTART_HOME": str(tmp_path / "home" / "hotstart"),
        "HOTSTART_REMOTE": REMOTE,
        "HOTSTART_LOG": "debug",
        "AWS_ACCESS_KEY_ID": "reader",
        "AWS_SECRET_ACCESS_KEY": "aws-secret-word",
        "AWS_SESSION_TOKEN": "aws-session-word",
        "AZURE_STORAGE_ACCOUNT_KEY": "azure-secret-word",
    }


@pytest.mark.parametrize(
    "command",
    [
        ["config"], ["config", "--json"], ["config", "remote"], ["config", "remote", "--json"], ["env"], ["stats"],
        ["stats", "--json"], ["doctor"], ["doctor", "--json"], ["ls", "--long"], ["why"], ["pull", "train"],
        ["push", "train"], ["remote", "gc"], ["trust", "list"],
        ["run", "--json", sys.executable, "-c", "print(1)"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_command_tells_a_secret(command: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    subprocess.run([*HOTSTART, "trust", "keygen"], env=environment, cwd=tmp_path, capture_output=True, check=True)
    done = subprocess.run([*HOTSTART, *command], env=environment, cwd=tmp_path, capture_output=True, text=True)
    check(done.stdout + done.stderr, tmp_path)


def test_no_error_statistic_or_traceback_tells_a_secret(environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "redis://127.0.0.1:9/0" in done.stdout
    assert "Traceback" in done.stderr
    # The interpreter shows the source it was given, which holds the URL.
    check(done.stdout + done.stderr.replace(COMPILE.strip(), ""), tmp_path)


def test_no_record_of_a_run_holds_a_secret(environment: dict[str, str], tmp_path: Path) -> None:
    program = (
        "import os; d = os.environ['TRITON_CACHE_DIR'] + '/A'; os.makedirs(d); open(d + '/k.cubin', 'w').write('x')"
    )
    done = subprocess.run(
        [*HOTSTART, "run", sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "home" / "hotstart" / "runs").iterdir())
    why = subprocess.run([*HOTSTART, "why"], env=environment, cwd=tmp_path, capture_output=True, text=True)
    check(done.stdout + done.stderr + why.stdout + why.stderr, tmp_path)


def check(text: str, directory: Path) -> None:
    for part in PARTS:
        assert part not in text, text
    for path in directory.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(part.encode() in data for part in PARTS), path
