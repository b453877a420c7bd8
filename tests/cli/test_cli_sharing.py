"""``push``, ``pull``, ``trust`` and ``remote gc`` from the command line, over a directory that two homes share.

What goes across, what each prints, and that whatever is wrong with the settings is one line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import hotstart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory that is the remote; not made yet."""
    monkeypatch.setenv("HOTSTART_REMOTE", f"file://{tmp_path}/shared")
    return tmp_path / "shared"


@pytest.fixture
def key(call: Call, shared: Path) -> str:
    """The id of a key that is signed with, and trusted for ``main``."""
    status, out, _ = call("trust", "keygen", "--json")
    assert status == 0
    made = json.loads(out)
    assert call("trust", "add", made["public"], "--scope", "main", "--name", "ci")[0] == 0
    return str(made["id"])


@pytest.fixture
def filled(home: Path) -> Path:
    with hotstart.Cache(home / "store", memory=0) as cache:
        for number in range(4):
            assert cache.put(hotstart.Key("nvrtc", name=f"k{number}.cu"), {"cubin": b"%d" % number * 100}, cost=1.0)
        assert cache.put(hotstart.Key("triton", name="add"), {"cubin": bytes(300)}, cost=1.0)
    return home


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Path]:
    """Go to another home, as on another machine of the same user."""

    def go() -> Path:
        monkeypatch.setenv("HOTSTART_HOME", str(tmp_path / "other"))
        return tmp_path / "other"

    return go


def only_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("hotstart: ")
    return lines[0]


def test_what_is_pushed_here_is_pulled_there(call: Call, key: str, filled: Path, elsewhere: Callable[[], Path]) -> None:
    status, out, err = call("push", "train")
    assert (status, err) == (0, "")
    assert out.startswith("workload train: pushed 5 entries")
    status, out, err = call("push", "train")
    assert (status, err) == (0, "")
    assert "pushed 0 entries" in out
    assert "5 were there" in out
    elsewhere()
    status, out, err = call("pull", "train")
    assert (status, err) == (0, "")
    assert "pulled 5 entries" in out
    assert "(2 requests)" in out
    assert len(json.loads(call("ls", "--json")[1])) == 5


def test_only_one_kind_is_pushed(call: Call, key: str, filled: Path, elsewhere: Callable[[], Path]) -> None:
    status, out, _ = call("push", "train", "--kind", "triton", "--json")
    assert (status, json.loads(out)["entries"]) == (0, 1)


def test_a_name_that_run_takes_can_be_pushed_and_pulled(
    call: Call, key: str, filled: Path, elsewhere: Callable[[], Path]
) -> None:
    assert call("push", "serve the model")[0] == 0
    elsewhere()
    assert json.loads(call("pull", "serve the model", "--json")[1])["entries"] == 5
    assert call("pull", "serve_the_model")[0] == 1


def test_a_pull_has_the_next_run_look_at_the_store(
    call: Call, key: str, filled: Path, elsewhere: Callable[[], Path]
) -> None:
    call("push", "train")
    home = elsewhere()
    (home / "launch").mkdir(parents=True)
    (home / "launch" / "state").write_text("as it was")
    call("pull", "train")
    assert not (home / "launch" / "state").exists()


def test_ls_long_shows_who_signed(call: Call, key: str, filled: Path, elsewhere: Callable[[], Path]) -> None:
    assert key not in call("ls", "--long")[1]
    call("push", "train")
    elsewhere()
    call("pull", "train")
    _, out, _ = call("ls", "--long")
    assert out.count(f"{key} (main)") == 5
    assert json.loads(call("ls", "--long", "--json")[1])[0]["provenance"]["signer"] == key


def test_a_revoked_key_takes_its_entries_along(
    call: Call, key: str, filled: Path, elsewhere: Callable[[], Path]
) -> None:
    call("push", "train")
    elsewhere()
    call("pull", "train")
    status, out, err = call("trust", "remove", key[:8])
    assert (status, err) == (0, "")
    assert "removed 5 entries" in out
    assert "revoked" in call("trust", "list")[1]
    assert call("pull", "train")[0] == 1
    assert json.loads(call("ls", "--json")[1]) == []


def test_trust_list_shows_keys_scopes_and_names(call: Call, key: str) -> None:
    _, out, _ = call("trust", "list")
    assert out.splitlines()[1].split() == [key, "main", "ci"]
    assert [(row["id"], row["scopes"]) for row in json.loads(call("trust", "list", "--json")[1])] == [(key, ["main"])]


def test_a_key_is_not_overwritten(call: Call, key: str) -> None:
    status, out, err = call("trust", "keygen")
    assert (status, out) == (2, "")
    assert "not overwritten" in only_line(err)


def test_remote_gc_removes_down_to_a_size(call: Call, key: str, filled: Path, shared: Path) -> None:
    call("push", "train")
    before = sum(path.is_file() for path in (shared / "v1").rglob("*"))
    status, out, err = call("remote", "gc", "--max-size", "0", "--dry-run")
    assert (status, err) == (0, "")
    assert f"would remove {before} objects" in out
    assert sum(path.is_file() for path in (shared / "v1").rglob("*")) == before
    assert json.loads(call("remote", "gc", "--max-size", "0", "--json")[1])["objects"] == before
    assert call("pull", "train")[0] == 1


def test_remote_gc_of_one_scope_leaves_the_others(call: Call, key: str, filled: Path) -> None:
    call("push", "train")
    assert json.loads(call("remote", "gc", "--max-size", "0", "--scope", "pr-7", "--json")[1])["objects"] == 0
    assert call("pull", "train")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["push"], "say which workload"),
        (["pull"], "say which workload"),
        (["push", "a/b"], "no slash"),
        (["pull", "a/b"], "no slash"),
        (["trust"], "say what to do"),
        (["trust", "fly"], "invalid choice"),
        (["trust", "add"], "say which key"),
        (["trust", "add", "nonsense", "--scope", "main"], "is not a public key"),
        (["trust", "add", "ed25519:" + "A" * 43], "say for which scopes"),
        (["trust", "add", "ed25519:" + "A" * 43, "--scope", "Main!"], "a scope is"),
        (["trust", "remove", "zz"], "no keys begin with 'zz'"),
        (["trust", "list", "zz"], "takes no key"),
        (["remote"], "say what to do"),
        (["remote", "gc", "--older-than", "soon"], "is not a time"),
        (["remote", "gc", "--max-size", "much"], "--max-size"),
        (["remote", "gc", "--scope", "../x"], "a scope is"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_two(
    call: Call, shared: Path, key: str, words: list[str], said: str
) -> None:
    status, out, err = call(*words)
    assert (status, out) == (2, "")
    assert said in only_line(err)


@pytest.mark.parametrize("words", [["push", "train"], ["pull", "train"], ["remote", "gc"]])
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("REMOTE", "", "no remote is set"),
        ("REMOTE", "s4://bucket/x", "it begins with s3://"),
        ("REMOTE", "bucket", "it begins with s3://"),
        ("REMOTE", "s3://", "names no bucket"),
        ("REMOTE", "file://relative", "three slashes"),
        ("OFFLINE", "1", "HOTSTART_OFFLINE says to leave the remote alone"),
        ("DISABLE", "1", "turned off by HOTSTART_DISABLE"),
        ("SCOPE", "Main", "a scope is"),
    ],
)
def test_settings_that_make_no_sense_are_one_line_and_two(
    call: Call, key: str, words: list[str], variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"HOTSTART_{variable}", value)
    status, out, err = call(*words)
    assert (status, out) == (2, "")
    assert said in only_line(err)


@pytest.mark.parametrize("command", ["push", "pull"])
def test_a_missing_extra_is_named(
    call: Call, key: str, filled: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None among the modules is what Python itself takes for a package that cannot be imported."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setenv("HOTSTART_REMOTE", "s3://team/kernels?region=eu-central-1")
    status, out, err = call(command, "train")
    assert (status, out) == (1, "")
    assert 'pip install "hotstart[s3]"' in only_line(err)


def test_a_directory_that_is_not_there_has_no_workload(call: Call, key: str, shared: Path) -> None:
    status, out, err = call("pull", "train")
    assert (status, out) == (1, "")
    assert only_line(err) == f"hotstart: file://{shared} has no workload train"
    assert not shared.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user whom a directory's mode can keep out")
def test_a_directory_that_cannot_be_made_is_one_line(
    call: Call, key: str, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    monkeypatch.setenv("HOTSTART_REMOTE", f"file://{tmp_path}/locked/shared")
    status, out, err = call("push", "train")
    assert (status, out) == (1, "")
    assert "locked/shared" in only_line(err)


def test_a_remote_that_is_a_file_is_one_line(call: Call, key: str, filled: Path, shared: Path) -> None:
    shared.write_text("not a directory")
    status, out, err = call("push", "train")
    assert (status, out) == (1, "")
    assert str(shared) in only_line(err)


def test_a_key_that_others_can_read_is_refused(call: Call, key: str, filled: Path, shared: Path) -> None:
    path = Path(os.environ["HOME"], ".config/hotstart/signing.key")
    path.chmod(0o644)
    status, out, err = call("push", "train")
    assert (status, out) == (2, "")
    assert "can be read by others: chmod 600" in only_line(err)
    assert not shared.exists()


def test_without_a_key_nothing_is_pushed(call: Call, filled: Path, shared: Path) -> None:
    status, out, err = call("push", "train")
    assert (status, out) == (2, "")
    assert "`hotstart trust keygen` makes one" in only_line(err)


def test_who_trusts_nobody_pulls_nothing_and_is_told(
    call: Call, key: str, filled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, elsewhere: Callable[[], Path]
) -> None:
    call("push", "train")
    elsewhere()
    monkeypatch.setenv("HOTSTART_TRUST", str(tmp_path / "empty"))
    status, out, err = call("pull", "train")
    assert (status, out) == (1, "")
    assert "trusts no key" in only_line(err)
    assert json.loads(call("pull", "train", "--json")[1])["requests"] == 0
    assert json.loads(call("ls", "--json")[1]) == []


def test_what_a_stranger_signed_is_not_pulled(
    call: Call, key: str, filled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, elsewhere: Callable[[], Path]
) -> None:
    call("trust", "keygen", "--file", str(tmp_path / "stranger.key"))
    monkeypatch.setenv("HOTSTART_SIGNING_KEY", str(tmp_path / "stranger.key"))
    assert call("push", "train")[0] == 0
    elsewhere()
    status, out, err = call("pull", "train")
    assert (status, out) == (1, "")
    assert "is not among the trusted keys" in only_line(err)
    assert json.loads(call("ls", "--json")[1]) == []
