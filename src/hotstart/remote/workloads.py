"""Named workloads: all the entries that a program needs, pushed by one machine and pulled by every other.

A pull is one request for the manifest and one ranged read a pack for what is missing
here; what is present is not fetched, so a pull that was interrupted goes on where it
ended. A push puts packs first and the manifest last: a manifest never speaks of what
is not there. Pushing again sends only what is new, and merges small packs.
"""

from __future__ import annotations

import threading
from queue import Queue

from ..errors import UsageError
from ..log import say
from ..store.entry import Draft
from ..trust.scope import Trusted, TrustList
from ..trust.seal import RejectedError, Sealed, Trust
from . import wire
from .contract import AbsentError, BrokenError, RemoteError, in_parallel
from .packs import LARGEST_MANIFEST, LARGEST_PACK, Manifest, Member, Pack, build, fits
from .streams import Workers, in_order, members_of
from .tier import RemoteTier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..store.entry import Entry
    from ..store.local import LocalStore
    from .contract import Bytes
    from .guard import Guarded
    from .packs import Row
    from .streams import Members

    Progress = Callable[[int, int], object]

#: Packs on their way at the same time.
_STREAMS = 2

#: Threads that check and keep what came, or pack what goes.
_WORKERS = 2

#: Entries that are packed before there is room for them in a pack: of sixteen megabytes at most, usually.
_AHEAD = 8

#: What came and waits for a worker, in pieces of a stream.
_WAITING = 4

#: A pack smaller than this is merged into the next one that is pushed.
_SMALL_PACK = LARGEST_PACK // 2

_MANIFEST_FIRST = 1 << 20


def check_workload(name: str) -> str:
    """Raises UsageError for what is not one plain word."""
    allowed = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not allowed.issuperset(name) or name[0] in ".-":
        raise UsageError(
            f"a workload's name is letters, digits, '.', '_' and '-', beginning with a letter: not {name!r}"
        )
    return name


def workload_name(scope: str, name: str) -> str:
    return f"v1/{scope}/workloads/{name}"


def pack_name(scope: str, identity: str) -> str:
    return f"v1/{scope}/packs/{identity}"


class Transfer:
    """What a push or a pull did."""

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0
        self.present = 0
        self.failed = 0
        self.foreign = 0
        self.requests = 0
        self.unanswered = 0
        self.found = False
        self._lock = threading.Lock()

    def count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + amount)

    def as_dict(self) -> dict[str, int | bool]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


# -- pull ----------------------------------------------------------------------


def pull(tier: RemoteTier, disk: LocalStore, name: str, progress: Progress | None = None) -> Transfer:
    """Bring what a workload needs into the local store. Never raises for what a remote does.

    ``found`` says whether there is such a workload, ``failed`` counts entries that are
    still missing, ``unanswered`` remotes that did not say or said what does not count,
    ``requests`` what it cost.
    """
    check_workload(name)
    done = Transfer()
    if not len(tier.trust.trusted) and not tier.trust.allow_unsigned:
        done.unanswered = len(tier.remotes)
        return done  # nothing could be used, which was said when the tier was opened: nobody need be asked
    before = _requests(tier)
    for scope in tier.scopes:
        for remote in tier.remotes:
            try:
                manifest = _read_manifest(tier, remote, scope, name)[0]
            except AbsentError:
                continue
            except RemoteError:
                manifest = None  # counted by its guard
            if manifest is None:
                done.unanswered += 1
                continue
            done.found = True
            _pull_packs(tier, remote, disk, scope, manifest, done, progress)
            for digest in manifest.singles:
                _pull_single(tier, disk, digest, done)
            break
    done.requests = _requests(tier) - before
    return done


def read_manifest(tier: RemoteTier, remote: Guarded, scope: str, name: str) -> tuple[Manifest | None, str] | None:
    """The manifest, None in its place when what is there does not check, and its tag; None when there is none."""
    try:
        return _read_manifest(tier, remote, scope, name)
    except RemoteError:
        return None  # absent, or counted by its guard


def _read_manifest(
    tier: RemoteTier, remote: Guarded, scope: str, name: str, trust: Trust | None = None
) -> tuple[Manifest | None, str]:
    """As ``read_manifest``, by another judge if one is given. Raises RemoteError."""
    where = workload_name(scope, name)
    found = remote.get(where, _MANIFEST_FIRST)
    try:
        sealed = Sealed(found.data)
        sealed.check("workload", name, scope, trust if trust is not None else tier.trust)
        if sealed.length > LARGEST_MANIFEST or found.size != sealed.at + sealed.length:
            raise RejectedError("it is not as long as it says", "payload")
        raw = found.data
        if found.size > len(raw):
            raw = b"".join((raw, remote.get_range(where, len(raw), found.size - len(raw), found.tag)))
        payload = memoryview(raw)[sealed.at :]
        sealed.check_payload(payload)
        said = sealed.statement
        body = wire.unpack(payload, said.encoding, said.size, LARGEST_MANIFEST)
        return Manifest.read(bytes(body), name, said.producer), found.tag
    except RejectedError as error:
        tier.counters.add(f"remote.rejected.{error.cause}")
        say("warning", f"{remote.shown}: workload {name} is not used: {error}", once=f"workload {error.cause}")
        return None, found.tag


def _pull_packs(
    tier: RemoteTier, remote: Guarded, disk: LocalStore, scope: str, manifest: Manifest, done: Transfer,
    progress: Progress | None,
) -> None:  # fmt: skip
    wanted: list[tuple[Pack, list[Row]]] = []
    asked: set[str] = set()
    for pack in manifest.packs:
        try:
            rows = pack.rows()
        except RejectedError as error:
            tier.counters.add(f"remote.rejected.{error.cause}")
            continue
        missing = [row for row in rows if row.digest not in asked and not disk.contains(row.digest)]
        asked.update(row.digest for row in missing)
        done.present += len(rows) - len(missing)
        if missing:
            wanted.append((pack, missing))
    total = sum(row.length for _, rows in wanted for row in rows)
    entries, size = done.entries, done.bytes  # of scopes before this one

    def check(row: Row, packed: Bytes) -> Draft | None:
        try:
            return Draft.of(row.open(packed, scope, manifest.signer, tier.limit))
        except RejectedError as error:
            tier.counters.add(f"remote.rejected.{error.cause}")
            say("warning", f"{remote.shown}: an entry is not used: {error}", once=f"rejected {error.cause}")
            return None

    def keep(members: Members) -> None:
        checked = [(row, draft) for row, packed in members if (draft := check(row, packed)) is not None]
        kept = disk.write_many([draft for _, draft in checked])
        done.count("entries", sum(kept))
        done.count("bytes", sum(row.length for (row, _), is_kept in zip(checked, kept, strict=True) if is_kept))
        if progress is not None and any(kept):
            progress(done.bytes - size, total)

    def fetch(item: tuple[Pack, list[Row]]) -> None:
        pack, rows = item
        try:
            for members in members_of(remote, pack_name(scope, pack.id), pack.start, rows):
                arrived.put(members)
        except RemoteError:
            pass  # counted by its guard; what is missing is counted below

    # Checking, unpacking and writing let go of the interpreter, so threads at it keep the cores busy, also when all
    # comes in one pack. What waits is bounded: a few megabytes that are used again and again cost fewer page faults.
    arrived: Queue[Members | None] = Queue(_WAITING)
    workers = Workers(_WORKERS, arrived, keep)
    # The largest first: they end last.
    in_parallel(fetch, sorted(wanted, key=lambda item: -item[0].size), _STREAMS)
    workers.end()
    done.failed += sum(len(rows) for _, rows in wanted) - (done.entries - entries)
    tier.counters.add("remote.pulled", done.entries - entries)
    tier.counters.add("remote.bytes_read", done.bytes - size)


def _pull_single(tier: RemoteTier, disk: LocalStore, digest: str, done: Transfer) -> None:
    if disk.contains(digest):
        done.present += 1
        return
    entry = tier.read(digest)
    if entry is not None and disk.write(Draft.of(entry)):
        done.entries += 1
        done.bytes += entry.size
    else:
        done.failed += 1


# -- push ----------------------------------------------------------------------


def push(
    tier: RemoteTier, disk: LocalStore, name: str, digests: Iterable[str], progress: Progress | None = None
) -> Transfer:
    """Publish these entries of the local store as the workload ``name``, beside what it holds already.

    What others signed is left out (``foreign``): it is theirs to publish. Raises
    UsageError when there is no key to sign with, or no remote that may be written;
    RemoteError when the manifest could not be put: then nothing has changed for readers.
    """
    check_workload(name)
    if not tier.writable:
        raise UsageError("nothing can be pushed: the remote is read-only or left alone, or there is no signing key")
    done = Transfer()
    before = _requests(tier)
    remote = _home(tier)
    for _ in range(4):
        if _push_once(tier, remote, disk, name, list(dict.fromkeys(digests)), done, progress):
            done.requests = _requests(tier) - before
            return done
    raise BrokenError(f"{remote.shown}: others keep changing workload {name}", "contended")


def _home(tier: RemoteTier) -> Guarded:
    """Packs and manifests live in the last remote of the chain that can be written: the one all share."""
    for remote in reversed(tier.remotes):
        if remote.is_writable() and (remote.max_value is None or remote.max_value >= LARGEST_PACK):
            return remote
    # Only such as Redis: better there than nowhere.
    return next(remote for remote in reversed(tier.remotes) if remote.is_writable())


def _push_once(
    tier: RemoteTier, remote: Guarded, disk: LocalStore, name: str, digests: list[str], done: Transfer,
    progress: Progress | None,
) -> bool:  # fmt: skip
    scope = tier.scope
    old, tag = None, ""
    try:
        old, tag = _read_manifest(tier, remote, scope, name, _with_ourselves(tier))
    except RemoteError:
        pass  # absent, or counted by its guard
    held = old.digests() if old is not None else set()
    singles = list(old.singles) if old is not None else []
    fresh = [digest for digest in digests if digest not in held]
    done.found = old is not None
    done.present = len(digests) - len(fresh)
    kept, small = _sort_old(tier, disk, old)
    if old is not None and not fresh and len(small) < 2:
        return True
    wanted = [row.digest for pack in small for row in pack.rows()] + fresh
    lost: set[str] = set()

    def prepare(digest: str) -> tuple[str, Entry | None, Member | None]:
        entry = disk.read(digest)
        return digest, entry, Member(entry) if entry is not None and _ours(tier, entry) else None

    def members() -> Iterator[tuple[str, Member]]:
        for number, (digest, entry, member) in enumerate(in_order(prepare, wanted, _WORKERS, _AHEAD), 1):
            if progress is not None:
                progress(number, len(wanted))
            if entry is None or member is None:
                done.foreign += entry is not None
                done.failed += entry is None
                lost.add(digest)
                continue
            done.entries += 1
            done.bytes += len(member.packed)
            if fits(member.packed) and (remote.max_value is None or len(member.packed) < remote.max_value // 2):
                yield digest, member
            elif tier.publish(entry):
                singles.append(digest)

    packs = kept
    for pack, whole in build(members(), scope, tier.signer, remote.max_value):
        _put_pack(tier, remote, scope, pack, whole)
        packs.append(pack)
    # What could not be taken over stays reachable where it was.
    packs += [pack for pack in small if any(row.digest in lost for row in pack.rows())]
    return remote.put(workload_name(scope, name), Manifest(name, packs, singles).seal(scope, tier.signer), replaces=tag)


def _sort_old(tier: RemoteTier, disk: LocalStore, old: Manifest | None) -> tuple[list[Pack], list[Pack]]:
    """Packs to keep as they are, and small ones to merge into larger ones.

    Only such as we signed, with all they hold here: else every push would add a request to every start.
    """
    kept: list[Pack] = []
    small: list[Pack] = []
    for pack in old.packs if old is not None else []:
        mine = tier.signer is not None and old is not None and old.signer == tier.signer.id
        is_small = mine and pack.size < _SMALL_PACK and all(disk.contains(row.digest) for row in pack.rows())
        (small if is_small else kept).append(pack)
    return kept, small


def _ours(tier: RemoteTier, entry: Entry) -> bool:
    """Made here, or signed by this very key for this very scope."""
    said = entry.provenance
    mine = tier.signer.id if tier.signer is not None else ""
    return wire.SIGNER not in said or (said[wire.SIGNER] == mine and said.get(wire.SCOPE) == tier.scope)


def _with_ourselves(tier: RemoteTier) -> Trust:
    """The judge of what is there already: our own signature counts, also where entries are signed but none are read.

    Else every push would take the place of the one before it.
    """
    signer = tier.signer
    if signer is None or tier.trust.trusted.find(signer.id) is not None:
        return tier.trust
    ours = Trusted(signer.public, (tier.scope,), "")
    return Trust(TrustList("", [*tier.trust.trusted, ours]), allow_unsigned=tier.trust.allow_unsigned)


def _put_pack(tier: RemoteTier, remote: Guarded, scope: str, pack: Pack, whole: bytes) -> None:
    """Raises RemoteError. A name that is taken by something else than this pack is taken back."""
    name = pack_name(scope, pack.id)
    if remote.put(name, whole):
        tier.counters.add("remote.puts")
        tier.counters.add("remote.bytes_written", len(whole))
        return
    found = remote.get(name, pack.start)
    try:
        sealed = Sealed(found.data)
        sealed.check("pack", pack.id, scope, _with_ourselves(tier))
        sealed.check_payload(memoryview(found.data)[sealed.at :])
        if found.size != pack.size:
            raise RejectedError("it is not as long as it should be", "payload")
    except RejectedError as error:
        tier.counters.add(f"remote.rejected.{error.cause}")
        if not remote.put(name, whole, replaces=found.tag):
            raise BrokenError(f"{remote.shown}: {name} changes under our hands", "contended") from None
        tier.counters.add("remote.replaced")


def _requests(tier: RemoteTier) -> int:
    return sum(remote.requests for remote in tier.remotes)
