"""Scopes as names, and the list of trusted keys: what a line means, rotation, revocation, who may write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotstart.errors import UsageError
from hotstart.trust.scope import TrustList, check_scope, parse_scopes
from hotstart.trust.signing import PublicKey, keygen


@pytest.fixture
def keys(tmp_path: Path) -> list[PublicKey]:
    return [keygen(str(tmp_path / f"key-{number}")) for number in range(3)]


@pytest.mark.parametrize("name", ["main", "pr-123", "v1.2", "a", "0", "x" * 64])
def test_scopes_that_are_names(name: str) -> None:
    assert check_scope(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../main", "main/x", "Main", "ma in", "main\n", "-x", ".x", "x" * 65, "ä", "*", "\0", None]
)  # fmt: skip
def test_scopes_that_could_be_something_else(name: Any) -> None:
    with pytest.raises(UsageError):
        check_scope(name)


def test_the_first_scope_is_written_all_are_read() -> None:
    assert parse_scopes("pr-123, main,pr-123") == ["pr-123", "main"]
    with pytest.raises(UsageError):
        parse_scopes("main,,x")


def test_a_list_is_kept_and_read_again(tmp_path: Path, keys: list[PublicKey]) -> None:
    path = str(tmp_path / "config" / "trusted.keys")
    trusted = TrustList.load(path)
    assert len(trusted) == 0
    trusted.add(keys[0], ["main", "release"], "ci of the team")
    trusted.add(keys[1], ["pr-*"])
    trusted.add(keys[0], ["nightly"])
    again = TrustList.load(path)
    first = again.find(keys[0].id)
    assert first is not None
    assert (first.scopes, first.name) == (("main", "release", "nightly"), "ci of the team")
    assert first.covers("main") and not first.covers("main2") and not first.covers("pr-1")
    second = again.find(keys[1].id)
    assert second is not None
    assert second.covers("pr-1") and not second.covers("main") and not second.covers("pr")
    assert (tmp_path / "config" / "trusted.keys").stat().st_mode & 0o777 == 0o600


def test_a_revoked_key_stays_revoked(tmp_path: Path, keys: list[PublicKey]) -> None:
    path = str(tmp_path / "trusted.keys")
    trusted = TrustList.load(path)
    trusted.add(keys[0], ["main"], "old")
    trusted.add(keys[1], ["main"], "new")
    assert trusted.revoke(keys[0].id[:6]).key == keys[0]
    again = TrustList.load(path)
    old = again.find(keys[0].id)
    assert old is not None and old.revoked and not old.covers("main")
    assert len(again) == 1
    with pytest.raises(UsageError, match="revoked"):
        again.add(keys[0], ["main"])
    with pytest.raises(UsageError, match="no keys begin with"):
        again.revoke("zz")
    with pytest.raises(UsageError):
        again.revoke("")


@pytest.mark.parametrize("line", ["nonsense", "ed25519:AAAA main", "{key}", "{key} Main", "{key} main,", "{key} ../x",
                                  "revoked", "revoked nonsense"])  # fmt: skip
def test_a_line_that_makes_no_sense_trusts_nobody(tmp_path: Path, keys: list[PublicKey], line: str) -> None:
    path = tmp_path / "trusted.keys"
    path.write_text(f"# comment\n\n{keys[1]} main ok\n{line.format(key=keys[0])}\n")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="line 4"):
        TrustList.load(str(path))


@pytest.mark.parametrize("mode", [0o666, 0o660, 0o602])
def test_a_list_that_others_can_write_trusts_nobody(tmp_path: Path, keys: list[PublicKey], mode: int) -> None:
    path = tmp_path / "trusted.keys"
    path.write_text(f"{keys[0]} main\n")
    path.chmod(mode)
    with pytest.raises(UsageError, match="written by others"):
        TrustList.load(str(path))


def test_patterns_end_with_a_star_and_nothing_else(tmp_path: Path, keys: list[PublicKey]) -> None:
    trusted = TrustList.load(str(tmp_path / "trusted.keys"))
    for scopes in (["p*r"], ["**"], [""], [], ["pr/*"]):
        with pytest.raises(UsageError):
            trusted.add(keys[0], scopes)
    trusted.add(keys[0], ["*"])
    found = trusted.find(keys[0].id)
    assert found is not None and found.covers("anything")
    with pytest.raises(UsageError):
        trusted.add(keys[0], ["main"], "two\nlines")


def _key(path: Path) -> PublicKey:
    return keygen(str(path))


def test_a_revoked_key_stays_so_wherever_else_it_stands(tmp_path: Path) -> None:
    key = _key(tmp_path / "a.key")
    for number, text in enumerate((f"revoked {key}\n{key} main\n", f"{key} main\nrevoked {key}\n")):
        path = tmp_path / f"list{number}"
        path.write_text(text)
        path.chmod(0o600)
        found = TrustList.load(str(path)).find(key.id)
        assert found is not None
        assert found.revoked


def test_of_two_that_change_a_list_at_once_none_undoes_the_other(tmp_path: Path) -> None:
    path, gone, new = str(tmp_path / "list"), _key(tmp_path / "a.key"), _key(tmp_path / "b.key")
    TrustList.load(path).add(gone, ["main"])
    one, other = TrustList.load(path), TrustList.load(path)
    one.revoke(gone.id)
    other.add(new, ["main"])
    assert {entry.key: entry.revoked for entry in TrustList.load(path)} == {gone: True, new: False}


def test_what_people_wrote_into_the_list_stays(tmp_path: Path) -> None:
    path, first, second = tmp_path / "list", _key(tmp_path / "a.key"), _key(tmp_path / "b.key")
    path.write_text(f"# ours, ask Ada\n\n{first}   main\n  # the end")
    path.chmod(0o644)
    TrustList.load(str(path)).add(second, ["x"], "ci #2 of the team")
    TrustList.load(str(path)).revoke(first.id)
    assert path.read_text() == f"# ours, ask Ada\n\nrevoked {first}\n  # the end\n{second} x ci #2 of the team\n"
    assert path.stat().st_mode & 0o777 == 0o644
    found = TrustList.load(str(path)).find(second.id)
    assert found is not None
    assert found.name == "ci #2 of the team"
