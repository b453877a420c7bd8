"""Sealed objects: only what a trusted key signed, for this key, this scope and these very bytes, gets through."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotstart import log
from hotstart.trust.scope import TrustList
from hotstart.trust.seal import STATEMENT_LIMIT, RejectedError, Sealed, Statement, Trust, seal
from hotstart.trust.signing import SigningKey, keygen

KEY, OTHER = "a" * 64, "b" * 64
PAYLOAD = b"payload" * 100


@pytest.fixture
def signer(tmp_path: Path) -> SigningKey:
    keygen(str(tmp_path / "key"))
    return SigningKey.load(str(tmp_path / "key"))


@pytest.fixture
def stranger(tmp_path: Path) -> SigningKey:
    keygen(str(tmp_path / "stranger"))
    return SigningKey.load(str(tmp_path / "stranger"))


@pytest.fixture
def trust(tmp_path: Path, signer: SigningKey) -> Trust:
    trusted = TrustList.load(str(tmp_path / "trusted.keys"))
    trusted.add(signer.public, ["main"], "ci")
    return Trust(trusted)


def sealed(signer: SigningKey | None, *, key: str = KEY, scope: str = "main", payload: bytes = PAYLOAD) -> bytes:
    return seal("entry", key, scope, payload, encoding=0, size=len(payload), signer=signer) + payload


def opened(data: bytes, trust: Trust) -> Statement:
    found = Sealed(data)
    found.check("entry", KEY, "main", trust)
    found.check_payload(data[found.at :])
    return found.statement


def rejected(data: bytes, trust: Trust) -> str:
    with pytest.raises(RejectedError) as caught:
        opened(data, trust)
    return caught.value.cause


def test_what_is_signed_by_who_is_trusted_is_let_in(trust: Trust, signer: SigningKey) -> None:
    statement = opened(sealed(signer), trust)
    assert (statement.key, statement.scope, statement.producer) == (KEY, "main", signer.id)
    assert statement.size == len(PAYLOAD)


def test_each_reason_has_its_name(trust: Trust, signer: SigningKey, stranger: SigningKey) -> None:
    assert rejected(sealed(None), trust) == "unsigned"
    assert rejected(sealed(stranger), trust) == "untrusted"
    assert rejected(sealed(signer, key=OTHER), trust) == "other_key"
    assert rejected(sealed(signer, scope="pr-1"), trust) == "other_scope"
    good = sealed(signer)
    assert rejected(good[:-1] + b"X", trust) == "payload"
    assert rejected(good + b"X", trust) == "payload"
    assert rejected(good[:-1], trust) == "payload"
    assert rejected(b"", trust) == "malformed"
    assert rejected(b"hotS" + bytes(100), trust) == "other_version"
    pack = seal("pack", KEY, "main", PAYLOAD, encoding=0, size=1, signer=signer) + PAYLOAD
    assert rejected(pack, trust) == "other_key"


def test_a_key_counts_only_for_its_scopes(trust: Trust, signer: SigningKey) -> None:
    data = sealed(signer, scope="pr-1")
    with pytest.raises(RejectedError) as caught:
        Sealed(data).check("entry", KEY, "pr-1", trust)
    assert caught.value.cause == "untrusted"


def test_a_signature_does_not_carry_over(trust: Trust, signer: SigningKey, stranger: SigningKey) -> None:
    """The signature of one entry under the statement of another, and a stranger posing as the trusted producer."""
    one, other = Sealed(sealed(signer)), sealed(signer, payload=b"evil")
    at = Sealed(other).at
    assert rejected(other[: at - 64] + one.signature + other[at:], trust) == "signature"
    posing = sealed(stranger).replace(stranger.id.encode(), signer.id.encode())
    assert rejected(posing, trust) == "signature"


def test_a_revoked_key_is_out_even_where_unsigned_is_allowed(trust: Trust, signer: SigningKey) -> None:
    data = sealed(signer)
    trust.trusted.revoke(signer.id)
    assert rejected(data, trust) == "revoked"
    assert rejected(data, Trust(trust.trusted, allow_unsigned=True)) == "revoked"


def test_unsigned_is_let_in_only_loudly(
    trust: Trust, stranger: SigningKey, signer: SigningKey, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(log, "_said", set())  # once a process, and other tests say it too
    open_door = Trust(trust.trusted, allow_unsigned=True)
    opened(sealed(None), open_door)
    opened(sealed(stranger), open_door)
    assert "HOTSTART_ALLOW_UNSIGNED" in capfd.readouterr().err
    assert rejected(sealed(None, key=OTHER), open_door) == "other_key"
    assert rejected(sealed(None)[:-1] + b"X", open_door) == "payload"
    # What claims to be from a trusted key still has to be.
    assert rejected(sealed(stranger).replace(stranger.id.encode(), signer.id.encode()), open_door) == "signature"


def test_every_flipped_bit_is_found(trust: Trust, signer: SigningKey) -> None:
    good = sealed(signer, payload=b"p")
    for at in range(len(good)):
        for bit in (0x01, 0x80):
            bad = bytearray(good)
            bad[at] ^= bit
            if 5 <= at < 8:
                continue  # reserved bytes, which nothing reads
            with pytest.raises(RejectedError):
                opened(bytes(bad), trust)


def test_every_cut_is_found(trust: Trust, signer: SigningKey) -> None:
    good = sealed(signer, payload=b"p" * 10)
    for end in range(len(good)):
        with pytest.raises(RejectedError):
            opened(good[:end], trust)


def test_a_statement_that_claims_gigabytes_is_not_read(trust: Trust, signer: SigningKey) -> None:
    good = bytearray(sealed(signer))
    good[8:12] = (1 << 31).to_bytes(4, "little")
    assert rejected(bytes(good), trust) == "malformed"
    assert Sealed(sealed(signer)).at <= STATEMENT_LIMIT
