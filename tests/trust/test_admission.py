"""What came from a remote and lies in the local store is served by what is trusted now, not by what was then."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import hotstart
from hotstart.remote import wire
from hotstart.remote.hygiene import forget_signer
from hotstart.remote.tier import entry_name
from hotstart.remote.url import open_remote
from hotstart.trust import seal
from hotstart.trust.scope import TrustList
from hotstart.trust.seal import Statement
from hotstart.trust.signing import SigningKey, keygen

KEY = hotstart.Key("test", name="kernel", number=1)
OTHER = hotstart.Key("test", name="kernel", number=2)
MADE = {"cubin": b"machine code"}


class Machine:
    """Its store holds an entry of a writer of ``pr-7``, whose key it trusts for that; another is in the remote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        keygen(str(path / "pr.key"))
        self.writer = SigningKey.load(str(path / "pr.key"))
        self.list = TrustList.load(str(path / "trusted.keys"))
        self.list.add(self.writer.public, ["pr-7"])
        self.remote = f"file://{path}/shared"
        there = hotstart.Cache(path / "there", remote=self.remote, scope="pr-7", signing_key=str(path / "pr.key"))
        with there:
            there.put(KEY, MADE)
            there.put(OTHER, MADE)
        with self.cache(remote=self.remote, scope="main,pr-7") as cache:
            assert cache.get(KEY) is not None

    def cache(self, **settings: Any) -> hotstart.Cache:
        """As another process opens it; without the remote unless told, so that only the store can answer."""
        return hotstart.Cache(self.path / "here", **{"memory": 0, "trust": self.list.path, **settings})

    def serves(self, **settings: Any) -> bool:
        with self.cache(**settings) as cache:
            entry = cache.get(KEY)
            refused = cache.counters.snapshot().get("remote.rejected.stored", 0)
            assert refused == (entry is None), "what is not served is counted"
            return entry is not None


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_is_trusted_for_a_scope_that_is_read_is_served_from_the_store(machine: Machine) -> None:
    assert machine.serves(scope="main,pr-7")
    assert machine.serves(scope="pr-7")


def test_what_came_in_a_scope_that_is_not_read_is_not_served(machine: Machine) -> None:
    assert not machine.serves(scope="main")


def test_what_a_key_signed_that_this_list_does_not_know_is_not_served(machine: Machine) -> None:
    assert not machine.serves(scope="pr-7", trust=str(machine.path / "nobody.keys"))


def test_what_a_key_signed_that_is_trusted_for_other_scopes_is_not_served(machine: Machine) -> None:
    narrower = TrustList.load(str(machine.path / "narrower.keys"))
    narrower.add(machine.writer.public, ["pr-8"])
    assert not machine.serves(scope="pr-7", trust=narrower.path)


def test_layers_are_judged_as_the_store_is(machine: Machine) -> None:
    for scope, expected in (("pr-7", True), ("main", False)):
        with hotstart.Cache(None, under=[machine.path / "here"], trust=machine.list.path, scope=scope) as cache:
            assert (cache.get(KEY) is not None) == expected


def test_a_running_process_serves_and_fetches_nothing_of_a_key_that_was_revoked_meanwhile(machine: Machine) -> None:
    running = machine.cache(remote=machine.remote, scope="pr-7")
    assert running.get(KEY) is not None
    TrustList.load(machine.list.path).revoke(machine.writer.id)
    assert running.get(KEY) is None
    assert running.get(OTHER) is None
    assert len(running) == 1, "nothing of it was stored again"
    assert running.disk is not None
    assert len(forget_signer(running.disk, machine.writer.id)) == 1


def test_a_running_process_notices_a_list_that_others_could_write(machine: Machine) -> None:
    running = machine.cache(scope="pr-7")
    assert running.get(KEY) is not None
    os.chmod(machine.list.path, 0o666)
    assert running.get(KEY) is None
    os.chmod(machine.list.path, 0o600)
    assert running.get(KEY) is not None


def test_a_compile_takes_the_place_of_what_is_not_served(machine: Machine) -> None:
    with machine.cache(scope="main") as cache:
        made = cache.get_or_compile(KEY, lambda: {"cubin": b"our own"})
        assert made.tier == "compiled"
        again = cache.get(KEY)
        assert again is not None
        assert (again["cubin"], again.origin()) == (b"our own", None)


def unsigned(machine: Machine) -> hotstart.Key:
    """An entry that nobody signed but says that the trusted writer did, brought here while that was allowed."""
    key = hotstart.Key("test", name="unsigned")
    with hotstart.Cache(None) as cache:
        cache.put(key, MADE)
        entry = cache.get(key)
    assert entry is not None
    packed, encoding, size = wire.pack_entry(entry)
    said = Statement(what="entry", key=key.digest, payload=seal.digest(packed), encoding=encoding, size=size,
                     scope="pr-7", producer=machine.writer.id, time=0).pack()  # fmt: skip
    head = seal._HEAD.pack(seal._MAGIC, seal._VERSION, 0, 0, len(said), 0, len(packed))
    assert open_remote(machine.remote).put(entry_name("pr-7", key.digest), head + said + packed)
    with machine.cache(remote=machine.remote, scope="pr-7", allow_unsigned=True) as cache:
        came = cache.get(key)
        assert came is not None
        assert came.origin() == ("", "pr-7"), "no signature was checked, whatever it says"
        assert came.provenance["unsigned"] is True
    return key


def test_what_nobody_signed_is_served_only_while_that_is_allowed(machine: Machine) -> None:
    key = unsigned(machine)
    with machine.cache(scope="pr-7", allow_unsigned=True) as cache:
        assert cache.get(key) is not None
    with machine.cache(scope="pr-7") as cache:
        assert cache.get(key) is None


def test_what_nobody_signed_is_not_served_for_a_revoked_key_either(machine: Machine) -> None:
    machine.list.revoke(machine.writer.id)
    assert not machine.serves(scope="pr-7", allow_unsigned=True)
