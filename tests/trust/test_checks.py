"""Two digests of the same bytes: whichever a reader looks at, other bytes do not pass."""

from __future__ import annotations

import hashlib

import pytest
from blake3 import blake3

from hotstart.trust import checks


@pytest.mark.parametrize("prefers_sha256", [True, False])
def test_other_bytes_pass_neither_digest(monkeypatch: pytest.MonkeyPatch, prefers_sha256: bool) -> None:
    monkeypatch.setattr(checks, "_prefers_sha256", prefers_sha256)
    data = bytes(range(256)) * 400
    check = checks.check_of(data)
    assert len(check) == checks.SIZE
    assert checks.matches(memoryview(data), check)
    for at in (0, 50_000, len(data) - 1):
        changed = bytearray(data)
        changed[at] ^= 1
        assert not checks.matches(changed, check)
    assert not checks.matches(data[:-1], check)
    assert not checks.matches(data, checks.check_of(b""))


def test_the_digests_are_blake3_and_sha256() -> None:
    assert checks.check_of(b"cubin") == blake3(b"cubin").digest() + hashlib.sha256(b"cubin").digest()


def test_the_choice_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_prefers_sha256", None)
    chosen = checks.prefers_sha256()
    monkeypatch.setattr(checks, "perf_counter", lambda: pytest.fail("tried again"))
    assert checks.prefers_sha256() is chosen
