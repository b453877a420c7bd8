"""Keys and their files: private ones stay private, public ones travel as text, signatures hold or do not."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from hotstart.errors import UsageError
from hotstart.trust.signing import MissingSignerError, PublicKey, SigningKey, keygen


def test_a_key_signs_and_its_public_half_checks(tmp_path: Path) -> None:
    public = keygen(str(tmp_path / "keys" / "mine"))
    key = SigningKey.load(str(tmp_path / "keys" / "mine"))
    assert key.public == public == PublicKey.parse(str(public))
    signature = key.sign(b"message")
    assert public.checks(signature, b"message")
    assert not public.checks(signature, b"other message")
    assert not public.checks(bytes(64), b"message")
    assert not public.checks(b"", b"message")
    other = keygen(str(tmp_path / "other"))
    assert not other.checks(signature, b"message")
    assert other.id != public.id


def test_a_key_file_is_private_and_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "mine"
    keygen(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0
    before = path.read_bytes()
    with pytest.raises(UsageError, match="not overwritten"):
        keygen(str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    keygen(str(tmp_path / "key"))
    (tmp_path / "key").chmod(mode)
    with pytest.raises(UsageError, match="chmod 600"):
        SigningKey.load(str(tmp_path / "key"))


@pytest.mark.parametrize("content", ["", "x", "{}1\n", "{}1\n!!!!\n", "{}1\nAAAA\n", "{}2\n" + "A" * 43])
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content.format("hotstart signing key "))
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(UsageError):
        SigningKey.load(str(tmp_path / "key"))


def test_no_key_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="trust keygen"):
        SigningKey.load(str(tmp_path / "none"))


def test_a_private_key_is_neither_printed_nor_pickled(tmp_path: Path) -> None:
    keygen(str(tmp_path / "key"))
    secret = (tmp_path / "key").read_text().split("\n")[1]
    key = SigningKey.load(str(tmp_path / "key"))
    assert secret not in repr(key) + str(key) + str(key.public)
    with pytest.raises(TypeError):
        pickle.dumps(key)


@pytest.mark.parametrize("text", ["", "ed25519:", "ed25519:AAAA", "rsa:" + "A" * 43, "ed25519:" + "!" * 43, "A" * 43])
def test_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="public key"):
        PublicKey.parse(text)


def test_without_cryptography_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keygen(str(tmp_path / "key"))
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(MissingSignerError, match=r"hotstart\[sign\]"):
        SigningKey.load(str(tmp_path / "key"))
