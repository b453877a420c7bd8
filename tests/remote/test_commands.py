"""The commands for sharing: keys and lists, push and pull between two homes, remote gc; errors as one UsageError."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hotstart
from hotstart.cli.sharing import main
from hotstart.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import key_of
else:
    from machines import key_of


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """``at(home, *words)``: a command in that home; its JSON."""
    for name in ("REMOTE", "TRUST", "SCOPE", "SIGNING_KEY", "READ_ONLY", "OFFLINE", "DISABLE", "ALLOW_UNSIGNED"):
        monkeypatch.delenv(f"HOTSTART_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOTSTART_REMOTE", f"file://{tmp_path}/shared")
    monkeypatch.chdir(tmp_path)

    def run(home: str, *words: str) -> Any:
        monkeypatch.setenv("HOTSTART_HOME", str(tmp_path / home))
        capsys.readouterr()
        status = main([*words, "--json"])
        return status, json.loads(capsys.readouterr().out)

    return run


def fill(tmp_path: Path, home: str) -> None:
    with hotstart.Cache(tmp_path / home / "store", memory=0) as cache:
        for number in range(5):
            assert cache.put(key_of(number), {"cubin": b"%d" % number}, cost=1.0)


def test_from_a_key_to_a_pull_to_a_revocation(at: Callable[..., Any], tmp_path: Path) -> None:
    _, made = at("one", "trust", "keygen")
    assert Path(made["file"]).stat().st_mode & 0o777 == 0o600
    at("one", "trust", "add", made["public"], "--scope", "main", "--name", "ci")
    _, listed = at("one", "trust", "list")
    assert [(row["id"], row["scopes"], row["revoked"]) for row in listed] == [(made["id"], ["main"], False)]
    fill(tmp_path, "one")
    status, pushed = at("one", "push", "train")
    assert (status, pushed["entries"]) == (0, 5)
    status, pulled = at("two", "pull", "train")
    assert (status, pulled["entries"], pulled["requests"]) == (0, 5, 2)
    _, collected = at("two", "remote", "gc", "--older-than", "30d", "--dry-run")
    assert (collected["objects"], collected["left_objects"]) == (0, 2)
    _, gone = at("two", "trust", "remove", made["id"][:6])
    assert len(gone["removed"]) == 5
    assert at("two", "pull", "train")[0] == 1


def test_no_such_workload_is_status_one(at: Callable[..., Any]) -> None:
    status, done = at("one", "pull", "nothing")
    assert (status, done["found"]) == (1, False)


@pytest.mark.parametrize(
    "words", [[], ["fly"], ["push", "a/b"], ["trust", "add"], ["trust", "remove", "zz"], ["trust", "add", "nonsense"]]
)
def test_what_makes_no_sense_is_misuse(at: Callable[..., Any], words: list[str]) -> None:
    with pytest.raises(UsageError):
        at("one", *words) if words else main([])


@pytest.mark.parametrize(("name", "value"), [("REMOTE", ""), ("OFFLINE", "1"), ("DISABLE", "1"), ("REMOTE", "s4://x")])
def test_without_a_remote_it_says_so(
    at: Callable[..., Any], name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"HOTSTART_{name}", value)
    with pytest.raises(UsageError):
        at("one", "pull", "train")
