"""What a stranger who can write to the remote may try. Nothing of it reaches a framework, and each attempt has a name.

The stranger holds a key of its own and may write anything anywhere: no bucket policy
helps here. Where it could be worse, the trusted writer itself is made to sign nonsense.
"""

from __future__ import annotations

import struct
import threading
import tracemalloc
from pathlib import Path

import pytest

import hotstart
from hotstart.keys.digest import encode
from hotstart.remote import wire
from hotstart.remote.tier import RemoteTier, entry_name
from hotstart.remote.url import open_remote, open_remotes
from hotstart.store.counters import Counters
from hotstart.store.entry import Entry
from hotstart.trust.scope import TrustList
from hotstart.trust.seal import Sealed, Trust, seal
from hotstart.trust.signing import SigningKey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Team, counted, key_of, make_entry, same
else:
    from machines import Team, counted, key_of, make_entry, same

EVIL = {"cubin": b"evil"}


def put(team: Team, name: str, data: bytes) -> None:
    assert open_remote(team.url).put(name, data)


def sealed_by(signer: SigningKey | None, entry: Entry, *, scope: str = "main", key: str = "") -> bytes:
    packed, encoding, size = wire.pack_entry(entry)
    return seal("entry", key or entry.digest, scope, packed, encoding=encoding, size=size, signer=signer) + packed


def signed_body(team: Team, body: bytes, digest: str, *, encoding: int = wire.RAW, size: int | None = None) -> bytes:
    """A body of any kind, with a good signature."""
    size = len(body) if size is None else size
    return seal("entry", digest, "main", body, encoding=encoding, size=size, signer=team.trusted) + body


def rejected(team: Team, digest: str, tier: RemoteTier | None = None) -> str:
    """Read it as a trusting machine would; the name of the reason why nothing came of it."""
    reader = tier or team.machine()
    assert reader.read(digest) is None
    (cause,) = counted(reader, "remote.rejected.")
    return cause


def test_unsigned(team: Team) -> None:
    entry = make_entry(1, EVIL)
    put(team, entry_name("main", entry.digest), sealed_by(None, entry))
    assert rejected(team, entry.digest) == "unsigned"


def test_signed_by_a_key_that_is_not_trusted(team: Team) -> None:
    entry = make_entry(1, EVIL)
    put(team, entry_name("main", entry.digest), sealed_by(team.stranger, entry))
    assert rejected(team, entry.digest) == "untrusted"


def test_signed_by_a_key_that_is_trusted_for_another_scope(team: Team) -> None:
    team.list.add(team.stranger.public, ["pr-*"])
    entry = make_entry(1, EVIL)
    put(team, entry_name("main", entry.digest), sealed_by(team.stranger, entry))
    assert rejected(team, entry.digest) == "untrusted"


def test_the_signature_of_another_entry(team: Team) -> None:
    good, evil = sealed_by(team.trusted, make_entry(1)), sealed_by(team.stranger, make_entry(1, EVIL))
    posing = evil.replace(team.stranger.id.encode(), team.trusted.id.encode())
    at = Sealed(posing).at
    put(team, entry_name("main", key_of(1).digest), posing[: at - 64] + Sealed(good).signature + posing[at:])
    assert rejected(team, key_of(1).digest) == "signature"


def test_other_bytes_under_a_good_statement(team: Team) -> None:
    good = sealed_by(team.trusted, make_entry(1))
    at = Sealed(good).at
    put(team, entry_name("main", key_of(1).digest), good[:at] + bytes(len(good) - at))
    assert rejected(team, key_of(1).digest) == "payload"


def test_a_good_entry_replayed_under_another_key(team: Team) -> None:
    """ccache serves 138 of 200 such, sccache 199."""
    old = make_entry("old")
    put(team, entry_name("main", key_of("new").digest), sealed_by(team.trusted, old))
    assert rejected(team, key_of("new").digest) == "other_key"


def test_an_entry_moved_from_one_scope_to_another(team: Team) -> None:
    team.list.add(team.trusted.public, ["pr-1"])
    entry = make_entry(1, EVIL)
    put(team, entry_name("main", entry.digest), sealed_by(team.trusted, entry, scope="pr-1"))
    assert rejected(team, entry.digest) == "other_scope"


@pytest.mark.parametrize("scope", ["main/../pr-1", "../main", "main\0", "MAIN", "main "])
def test_a_scope_that_is_a_path(near: Team, scope: str) -> None:
    entry = make_entry(1, EVIL)
    put(near, entry_name("main", entry.digest), sealed_by(near.stranger, entry, scope=scope))
    assert rejected(near, entry.digest) == "other_scope"


def wire_body(names: list[bytes], data: list[bytes]) -> bytes:
    entry = make_entry(1)
    provenance = b"{0:"
    about = entry.about()[: -len(encode(entry.provenance))]
    head = struct.pack("<QdHHIII", 1, 1.0, 4, 6, len(about), len(provenance), len(names))
    rows = b"".join(struct.pack("<HQ", len(name), len(part)) + name for name, part in zip(names, data, strict=True))
    return head + b"test" + b"kernel" + about + provenance + rows + b"".join(data)


def test_the_crafted_body_is_otherwise_good(near: Team) -> None:
    digest = key_of(1).digest
    put(near, entry_name("main", digest), signed_body(near, wire_body([b"cubin"], [b"code"]), digest))
    found = near.machine().read(digest)
    assert found is not None and found.items() == [("cubin", b"code")]


@pytest.mark.parametrize(
    "name", [b"../escape", b"/etc/passwd", b"a/../../b", b"..\\escape", b"a\0b", b"", b".", b"a//b", b"x" * 5000]
)
def test_artifact_names_that_leave_their_directory(near: Team, name: bytes) -> None:
    digest = key_of(1).digest
    put(near, entry_name("main", digest), signed_body(near, wire_body([name], [b"evil"]), digest))
    assert rejected(near, digest) == "name"


@pytest.mark.parametrize(
    "body",
    [b"", b"x" * 20, bytes(200), wire_body([b"a"], [b"1"])[:-1], wire_body([b"a"], [b"1"]) + b"x",
     wire_body([b"a", b"a"], [b"1", b"2"]), wire_body([b"\xff"], [b"1"])],
    ids=["empty", "short", "zero", "cut", "longer", "twice", "not text"],
)  # fmt: skip
def test_a_body_that_does_not_add_up(near: Team, body: bytes) -> None:
    digest = key_of(1).digest
    put(near, entry_name("main", digest), signed_body(near, body, digest))
    assert rejected(near, digest) == "malformed"


def test_a_description_that_is_no_description(near: Team) -> None:
    """From a stranger whom an open door lets in: what it says of itself must still be data of the right kind."""
    body = wire_body([b"a"], [b"1"]).replace(b"s4:meta{", b"s4:meta[", 1)
    head = seal("entry", key_of(1).digest, "main", body, encoding=0, size=len(body), signer=None)
    put(near, entry_name("main", key_of(1).digest), head + body)
    assert rejected(near, key_of(1).digest, near.machine(allow_unsigned=True)) == "malformed"


def test_a_decompression_bomb(near: Team) -> None:
    """A few kilobytes that hold a gigabyte: no more is unpacked than is declared, or declared than allowed."""
    digest = key_of(1).digest
    bomb = wire.zstd().compress(bytes(1 << 28))
    put(near, entry_name("main", digest), signed_body(near, bomb, digest, encoding=wire.ZSTD, size=1000))
    tracemalloc.start()
    assert rejected(near, digest) == "bomb"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 26
    other = key_of(2).digest
    put(near, entry_name("main", other), signed_body(near, bomb, other, encoding=wire.ZSTD, size=1 << 28))
    assert rejected(near, other, near.machine(limit=1 << 20)) == "oversize"


def test_two_frames_and_trailing_bytes(near: Team) -> None:
    digest, body = key_of(1).digest, wire_body([b"a"], [b"1"])
    packed = wire.zstd().compress(body) * 2
    put(near, entry_name("main", digest), signed_body(near, packed, digest, encoding=wire.ZSTD, size=len(body)))
    assert rejected(near, digest) == "payload"


def test_an_oversized_object_is_not_read(near: Team, tmp_path: Path) -> None:
    digest = key_of(1).digest
    path = tmp_path / "shared" / entry_name("main", digest)
    path.parent.mkdir(parents=True)
    good = sealed_by(near.trusted, make_entry(1))
    path.write_bytes(good)
    with path.open("r+b") as file:
        file.truncate(1 << 33)  # sparse: says eight gigabytes, holds nothing
    assert rejected(near, digest) == "payload"


@pytest.mark.parametrize(
    "data", [b"", b"hotS", b"\x00" * 100, b"PK\x03\x04" + bytes(100), b"\x80\x04\x95" + bytes(100)]
)
def test_anything_else(near: Team, data: bytes) -> None:
    """A pickle among them: hotstart does not know how to open one."""
    put(near, entry_name("main", key_of(1).digest), data)
    assert rejected(near, key_of(1).digest) == "malformed"


def test_what_fails_is_replaced_by_who_is_trusted(team: Team) -> None:
    entry = make_entry(1)
    put(team, entry_name("main", entry.digest), sealed_by(team.stranger, make_entry(1, EVIL)))
    writer = team.machine()
    assert writer.read(entry.digest) is None
    assert writer.publish(entry)
    assert counted(writer)["replaced"] == 1
    assert same(team.machine().read(entry.digest), entry)


def test_who_only_writes_and_trusts_nobody_replaces_nothing_that_is_signed(team: Team) -> None:
    """Neither what it published itself nor what its colleagues did: it cannot tell them from strangers."""
    entry = make_entry(1)
    nobody = Trust(TrustList(""))
    for signer in (team.trusted, team.trusted, team.stranger):
        writer = RemoteTier(open_remotes(team.url), Counters(), nobody, ["main"], signer=signer)
        assert writer.read(entry.digest) is None
        assert writer.publish(entry)
        assert "replaced" not in counted(writer)
    assert same(team.machine().read(entry.digest), entry)


def test_a_good_one_that_came_meanwhile_is_not_replaced(near: Team) -> None:
    entry, other = make_entry(1, {"cubin": b"mine"}), make_entry(1, {"cubin": b"theirs"})
    put(near, entry_name("main", entry.digest), b"junk")
    slow, quick = near.machine(), near.machine()
    assert slow.read(entry.digest) is None and quick.read(entry.digest) is None
    assert quick.publish(other)
    slow.publish(entry)
    assert same(near.machine().read(entry.digest), other)


def test_revoking_a_key_takes_effect_for_what_lies_in_the_remote(team: Team) -> None:
    entry = make_entry(1)
    assert team.machine().publish(entry)
    assert team.machine().read(entry.digest) is not None
    team.list.revoke(team.trusted.id)
    assert rejected(team, entry.digest) == "revoked"


def test_a_stranger_racing_for_the_same_keys_never_wins(near: Team, scale: int, hang_guard: None) -> None:
    """CREEP, CVE-2025-36852: an untrusted writer neither overwrites nor pre-empts what trusted readers get.

    Worst case: the stranger may write to ``main`` itself, and is as quick as the trusted writer.
    """
    races = 1000 * scale
    good = [make_entry(number, {"cubin": b"good %d" % number}) for number in range(races)]
    bad = [make_entry(number, {"cubin": b"evil %d" % number}) for number in range(races)]
    seen: list[bytes] = []
    start = threading.Barrier(3)

    def trusted() -> None:
        tier = near.machine()
        start.wait()
        for entry in good:
            if tier.read(entry.digest) is None:
                tier.publish(entry)

    def stranger() -> None:
        tier = near.machine(signer=near.stranger)
        start.wait()
        for entry in bad:
            tier.publish(entry)
            near_remote.put(entry_name("pr-1", entry.digest), tier.seal_entry(entry))

    def reader() -> None:
        tier = near.machine(scope="main,pr-1")
        start.wait()
        for entry in good:
            found = tier.read(entry.digest)
            if found is not None:
                seen.append(found["cubin"])

    near_remote = open_remote(near.url)
    threads = [threading.Thread(target=role) for role in (trusted, stranger, reader)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Who compiles reads first, so the second round heals what the stranger was first to.
    healer = near.machine()
    for entry in good:
        if healer.read(entry.digest) is None:
            healer.publish(entry)
    final = near.machine()
    assert all(same(final.read(entry.digest), entry) for entry in good)
    assert not [data for data in seen if data.startswith(b"evil")]


def crafted(entry: Entry, about: bytes, provenance: bytes, kind: str = "test") -> bytes:
    """A body as ``wire`` writes it, with a description of the attacker's own."""
    kind_, name, artifacts = kind.encode(), entry.name.encode(), entry.items()
    head = wire._HEAD.pack(
        entry.created, entry.cost, len(kind_), len(name), len(about), len(provenance), len(artifacts)
    )
    rows = b"".join(wire._ROW.pack(len(each), len(data)) + each.encode() for each, data in artifacts)
    return b"".join((head, kind_, name, about, provenance, rows, *(data for _, data in artifacts)))


def descriptions(entry: Entry) -> dict[str, tuple[bytes, bytes, str]]:
    """(about, provenance, kind) that this code would not have written."""
    whole, own = entry.about(), encode(entry.provenance)
    start = whole[: -len(own)]
    meta = encode("meta") + encode({})
    return {
        "a provenance of its own": (whole, encode({"z" * 9: {}}), "test"),
        "a provenance of its own, and the one we add": (whole + encode("provenance"), own, "test"),
        "no description": (b"garbage", own, "test"),
        "an empty one": (b"", own, "test"),
        "metadata twice": (start.replace(meta, meta + meta, 1), own, "test"),
        "a number in another form": (start.replace(meta, encode("meta") + b"{1:s1:ai0a;", 1), own, "test"),
        "metadata that are none": (start.replace(meta, encode("meta") + encode(7), 1), own, "test"),
        "another kind beside it": (start, own, "other"),
        "a provenance that is no mapping": (start, encode([1]), "test"),
    }


@pytest.mark.parametrize("case", list(descriptions(make_entry(1, EVIL))))
def test_a_trusted_key_signs_a_description_that_we_would_not_have_written(team: Team, case: str) -> None:
    """What it would say of its signer is lost with it: it would pass for made here, and be signed again by us."""
    entry = make_entry(1, EVIL)
    about, provenance, kind = descriptions(entry)[case]
    put(
        team, entry_name("main", entry.digest), signed_body(team, crafted(entry, about, provenance, kind), entry.digest)
    )
    assert rejected(team, entry.digest) == "malformed"


def test_a_description_as_we_write_it_is_taken(team: Team) -> None:
    """The other half of the test above: the bodies it makes are good but for what is wrong with them."""
    entry = make_entry(1, EVIL, options={"a": [1, (2.5, None)], 7: b"x"})
    own = encode(entry.provenance)
    body = crafted(entry, entry.about()[: -len(own)], own)
    put(team, entry_name("main", entry.digest), signed_body(team, body, entry.digest))
    assert same(team.machine().read(entry.digest), entry)


def test_every_key_that_can_be_made_can_be_shared(team: Team) -> None:
    """Its fields stand in an order of their own, whatever their labels: the check of descriptions knows it."""
    key = hotstart.Key("test", name="k", a=1, part=2, machine="x" * 500, Z=None, group=("é", b""), ab={}, version=3)
    with hotstart.Cache(None) as cache:
        cache.put(key, EVIL, meta={"b": 1, "aa": {"z": 1, "yy": -0.0}})
        entry = cache.get(key)
    assert entry is not None
    team.machine().publish(entry)
    assert same(team.machine().read(entry.digest), entry)


def test_a_provenance_that_names_another_signer_is_not_believed(team: Team) -> None:
    entry = make_entry(1, EVIL)
    own = encode(entry.provenance)
    said = encode({"signer": "0" * 16, "scope": "other", "unsigned": True})
    body = crafted(entry, entry.about()[: -len(own)], said)
    put(team, entry_name("main", entry.digest), signed_body(team, body, entry.digest))
    read = team.machine().read(entry.digest)
    assert read is not None
    assert read.provenance == {"signer": team.trusted.id, "scope": "main"}


@pytest.mark.parametrize("about", [b"", b"garbage", b"{1:s4:metai7;", b"{1:s10:provenancei7;"])
def test_an_entry_whose_description_makes_no_sense_never_raises_and_is_not_ours(about: bytes) -> None:
    """Such as a store may hold from before descriptions were checked: it reaches programs and ``push``."""
    entry = Entry("0" * 64, "disk", 1.0, 0, 4, {"cubin": b"evil"}, b"", about)
    assert (entry.meta, entry.fields, entry.kind, entry.name) == ({}, {}, "", "")
    assert entry.origin() == ("", "")
    assert wire.came_from_a_remote(entry)
