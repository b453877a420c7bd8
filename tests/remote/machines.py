"""Machines for the tests: entries to publish, keys to sign with, tiers that stand for other hosts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import hotstart
from hotstart.remote.tier import RemoteTier
from hotstart.remote.url import open_remotes
from hotstart.store.counters import Counters
from hotstart.store.entry import Entry
from hotstart.store.local import LocalStore
from hotstart.trust.scope import TrustList
from hotstart.trust.seal import Trust
from hotstart.trust.signing import SigningKey, keygen


def key_of(number: object) -> hotstart.Key:
    return hotstart.Key("test", name="kernel", number=number)


def make_entry(number: object = 0, artifacts: dict[str, bytes] | None = None, **meta: object) -> Entry:
    """What a compile made on this machine."""
    with hotstart.Cache(None) as cache:
        made = artifacts or {"cubin": random.Random(repr(number)).randbytes(300), "ptx": b"text " * 100}
        cache.put(key_of(number), made, meta=meta, cost=1.5)
        entry = cache.get(key_of(number))
        assert entry is not None
        return entry


class Team:
    """A key that is trusted for ``main``, one that is not, and tiers that know of them."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory, self.url = directory, url
        self.trusted, self.stranger = (self._key(name) for name in ("trusted", "stranger"))
        self.list = TrustList.load(str(directory / "trusted.keys"))
        self.list.add(self.trusted.public, ["main"], "ci")
        self._machines = 0

    def _key(self, name: str) -> SigningKey:
        path = str(self.directory / f"{name}.key")
        keygen(path)
        return SigningKey.load(path)

    def machine(
        self, *, scope: str = "main", signer: SigningKey | None = None, url: str = "", **options: Any
    ) -> RemoteTier:
        """Another host, which signs with the trusted key unless told otherwise."""
        self._machines += 1
        allow_unsigned = options.pop("allow_unsigned", False)
        return RemoteTier(
            open_remotes(url or self.url),
            Counters(),
            Trust(TrustList.load(self.list.path), allow_unsigned=allow_unsigned),
            scope.split(","),
            signer=options.pop("key", signer or self.trusted),
            state=str(self.directory / f"state-{self._machines}"),
            **options,
        )


class Machine:
    """A store of its own beside a tier."""

    def __init__(self, team: Team, path: Path, tier: RemoteTier | None = None) -> None:
        self.tier = tier or team.machine()
        scope, allow_unsigned = ",".join(self.tier.scopes), self.tier.trust.allow_unsigned
        self.cache = hotstart.Cache(path, memory=0, trust=team.list.path, scope=scope, allow_unsigned=allow_unsigned)

    @property
    def disk(self) -> LocalStore:
        assert self.cache.disk is not None
        return self.cache.disk

    def compile(self, numbers: range, size: int = 2000) -> list[str]:
        for number in numbers:
            data = random.Random(number).randbytes(size)
            assert self.cache.put(key_of(number), {"cubin": data, "ptx": b"text " * 50}, cost=0.5)
        return [key_of(number).digest for number in numbers]


def counted(tier: RemoteTier, start: str = "remote.") -> dict[str, int]:
    found = tier.counters.snapshot()
    return {name.removeprefix(start): int(count) for name, count in found.items() if name.startswith(start)}


def same(one: Entry | None, other: Entry) -> bool:
    """Whether it is the same entry, but for what its provenance says of its way here."""
    return (
        one is not None
        and one.items() == other.items()
        and (one.digest, one.cost, one.created, one.kind, one.name) == (
            other.digest, other.cost, other.created, other.kind, other.name)
        and (one.meta, one.fields) == (other.meta, other.fields)
    )  # fmt: skip
