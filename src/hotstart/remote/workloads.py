"""Named workloads: all the entries that a program needs, pushed by one machine and pulled by every other.

A pull is one request for the manifest and one ranged read a pack for what is missing
here; what is present is not fetched, so a pull that was interrupted goes on where it
ended. A push puts packs first and the manifest last: a manifest never speaks of what
is not there. Pushing again sends only what is new, and what is gone from the remote;
it merges small packs, and leaves out those of keys that the pusher does not trust.
"""

from __future__ import annotations

import threading
from queue import Queue

from ..errors import UsageError
from ..log import say
from ..store.entry import Draft
from ..trust.seal import STATEMENT_LIMIT, RejectedError, Sealed
from . import wire
from .contract import AbsentError, BrokenError, RefusedError, RemoteError, in_parallel
from .manifests import (
    check_workload,
    find_manifest,
    note_rejected,
    open_manifest,
    pack_name,
    read_manifest,
    with_ourselves,
    workload_name,
)
from .packs import LARGEST_PACK, Manifest, Member, Pack, build, fits
from .streams import Workers, in_order, members_of
from .tier import RemoteTier, entry_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..store.entry import Entry
    from ..store.local import LocalStore
    from .contract import Bytes, Found
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

#: Of a smaller pack it is not asked whether it is there: putting it costs no more, and says so too.
_ASK_FROM = 1 << 20

#: How often a push begins again because somebody else changed the workload meanwhile.
_ATTEMPTS = 4


class Transfer:
    """What a push or a pull did."""

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0
        self.present = 0
        self.failed = 0
        #: Of those that failed: entries in packs that are gone from the remote, which asking again does not bring.
        self.gone = 0
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
    still missing, ``gone`` those of them that the remote lost, ``unanswered`` remotes that
    did not say or said what does not count, ``requests`` what it cost. Entries come with
    the name of the key that sealed their pack, whoever signed the manifest; a pack whose
    key is not trusted here is as absent.
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
                manifest = read_manifest(remote, scope, name, tier.trust)
            except AbsentError:
                continue
            except RemoteError:
                done.unanswered += 1  # counted by its guard
                continue
            except RejectedError as error:
                note_rejected(tier, remote, f"workload {name}", error)
                done.unanswered += 1
                continue
            done.found = True
            _pull_packs(tier, remote, disk, scope, manifest, done, progress)
            for digest in manifest.singles:
                _pull_single(tier, disk, digest, done)
            break
    done.requests = _requests(tier) - before
    return done


def _pull_packs(
    tier: RemoteTier, remote: Guarded, disk: LocalStore, scope: str, manifest: Manifest, done: Transfer,
    progress: Progress | None,
) -> None:  # fmt: skip
    wanted: list[tuple[Pack, list[Row]]] = []
    asked: set[str] = set()
    signers: dict[str, str] = {}
    for pack in manifest.packs:
        try:
            signers[pack.id] = pack.signer(scope, tier.trust)
            rows = pack.rows()
        except RejectedError as error:
            note_rejected(tier, remote, f"pack {pack.id[:12]} of workload {manifest.name}", error)
            continue
        missing = [row for row in rows if row.digest not in asked and not disk.contains(row.digest)]
        asked.update(row.digest for row in missing)
        done.present += len(rows) - len(missing)
        if missing:
            wanted.append((pack, missing))
    total = sum(row.length for _, rows in wanted for row in rows)
    entries, size = done.entries, done.bytes  # of scopes before this one

    def check(row: Row, packed: Bytes, signer: str) -> Draft | None:
        try:
            return Draft.of(row.open(packed, scope, signer, tier.limit))
        except RejectedError as error:
            tier.counters.add(f"remote.rejected.{error.cause}")
            say("warning", f"{remote.shown}: an entry is not used: {error}", once=f"rejected {error.cause}")
            return None

    def keep(came: tuple[str, Members]) -> None:
        signer, members = came
        checked = [(row, draft) for row, packed in members if (draft := check(row, packed, signer)) is not None]
        kept = disk.write_many([draft for _, draft in checked])
        done.count("entries", sum(kept))
        done.count("bytes", sum(row.length for (row, _), is_kept in zip(checked, kept, strict=True) if is_kept))
        if progress is not None and any(kept):
            progress(done.bytes - size, total)

    def fetch(item: tuple[Pack, list[Row]]) -> None:
        pack, rows = item
        try:
            for members in members_of(remote, pack_name(scope, pack.id), pack.start, rows):
                arrived.put((signers[pack.id], members))
        except AbsentError:
            done.count("gone", len(rows))
        except RemoteError:
            pass  # counted by its guard; what is missing is counted below

    # Checking, unpacking and writing let go of the interpreter, so threads at it keep the cores busy, also when all
    # comes in one pack. What waits is bounded: a few megabytes that are used again and again cost fewer page faults.
    arrived: Queue[tuple[str, Members] | None] = Queue(_WAITING)
    workers = Workers(_WORKERS, arrived, keep)
    # The largest first: they end last.
    in_parallel(fetch, sorted(wanted, key=lambda item: -item[0].size), _STREAMS)
    workers.end()
    done.failed += sum(len(rows) for _, rows in wanted) - (done.entries - entries)
    if done.gone:
        say(
            "warning",
            f"{remote.shown}: {done.gone} entries of workload {manifest.name} are gone from there;"
            f" `hotstart push {manifest.name}` on a machine that has them repairs it",
            once=f"gone {manifest.name}",
        )
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

    What others signed is left out (``foreign``): it is theirs to publish. What the workload
    should hold and the remote has lost is sent again if it is here, else no longer listed.
    Raises UsageError when there is no key to sign with, or no remote that may be written;
    RemoteError when what is there could not be read or the manifest not be put: then nothing
    has changed for readers.
    """
    check_workload(name)
    if not tier.writable:
        raise UsageError("nothing can be pushed: the remote is read-only or left alone, or there is no signing key")
    wanted = list(dict.fromkeys(digests))
    before = _requests(tier)
    remote = _home(tier)
    sent = _Sent()
    for _ in range(_ATTEMPTS):
        there = _look(tier, remote, name)
        plan = _Plan(tier, disk, there, wanted)
        if plan.is_empty or _carry_out(tier, remote, disk, name, there, plan, sent, progress):
            done = sent.summary(wanted, there)
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


class _Sent:
    """What a push made of each entry. By digest, so that what is sent again counts once."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.foreign: set[str] = set()
        self.failed: set[str] = set()

    def summary(self, wanted: list[str], there: _There) -> Transfer:
        done = Transfer()
        done.found = there.found
        done.entries, done.bytes = len(self.sizes), sum(self.sizes.values())
        done.foreign, done.failed = len(self.foreign), len(self.failed)
        held = there.held()
        done.present = sum(digest in held and digest not in self.sizes for digest in wanted)
        return done


class _There:
    """What a remote holds of a workload and can be taken over: packs of trusted keys that exist, with their signers.

    ``lost``  digests that the manifest speaks of and the remote does not have any more
    ``tag``   of the manifest that a new one takes the place of; empty when there is none
    """

    def __init__(self, tag: str = "", found: bool = False) -> None:
        self.tag = tag
        self.found = found
        self.packs: list[tuple[Pack, str, list[Row]]] = []
        self.singles: list[str] = []
        self.lost: list[str] = []

    def held(self) -> set[str]:
        return {row.digest for _, _, rows in self.packs for row in rows}.union(self.singles)


def _look(tier: RemoteTier, remote: Guarded, name: str) -> _There:
    """Raises RemoteError when it cannot be told what is there."""
    trust = with_ourselves(tier)
    try:
        found = find_manifest(remote, tier.scope, name)
        manifest = open_manifest(remote, tier.scope, name, trust, found)
    except AbsentError:
        return _There()
    except RejectedError as error:
        note_rejected(tier, remote, f"workload {name}", error)
        if error.cause == "missing_extra":  # it may be a good one: not ours to replace
            raise RefusedError(f"{remote.shown}: workload {name} is not pushed: {error}", error.cause) from None
        return _There(found.tag)
    except RemoteError as error:
        raise _unreadable(name, error) from None
    there = _There(found.tag, found=True)
    for pack in manifest.packs:
        try:
            signer, rows = pack.signer(tier.scope, trust), pack.rows()
        except RejectedError as error:
            note_rejected(tier, remote, f"pack {pack.id[:12]} of workload {name}", error)
            continue
        if signer or tier.signer is None:  # we do not sign for what nobody signed
            there.packs.append((pack, signer, rows))
    there.singles = manifest.singles
    try:
        _check_there(remote, tier.scope, there)
    except RemoteError as error:
        raise _unreadable(name, error) from None
    return there


def _unreadable(name: str, error: RemoteError) -> RemoteError:
    said = f"workload {name} is not pushed, since what is there of it could not be read: {error}"
    return type(error)(said, error.cause)


def _check_there(remote: Guarded, scope: str, there: _There) -> None:
    """Move what the manifest speaks of and the remote has lost to ``lost``. One small request a pack, in parallel.

    Lost to a lifecycle rule, a collection that raced a push, or by hand. Raises RemoteError.
    """
    packs = {pack_name(scope, pack.id): pack for pack, _, _ in there.packs}
    singles = {entry_name(scope, digest) for digest in there.singles}
    found = remote.get_many([*packs, *singles], STATEMENT_LIMIT)
    good = {name for name, pack in packs.items() if name in found and _is_same(pack, found[name])}
    there.lost = [row.digest for pack, _, rows in there.packs if pack_name(scope, pack.id) not in good for row in rows]
    there.lost += [digest for digest in there.singles if entry_name(scope, digest) not in found]
    there.packs = [row for row in there.packs if pack_name(scope, row[0].id) in good]
    there.singles = [digest for digest in there.singles if entry_name(scope, digest) in found]


def _is_same(pack: Pack, found: Found) -> bool:
    """Whether readers who go by this row of a manifest find its members there. Its seal may be another's by now."""
    try:
        sealed = Sealed(found.data)
    except RejectedError:
        return False
    return found.size == pack.size and sealed.at == len(pack.head) and sealed.statement.key == pack.id


class _Plan:
    """What a push is to do: packs to list as they are, and entries to pack anew.

    Small packs of ours are ``merged`` into larger ones, if all they hold is here: else every
    push would add a request to every start.
    """

    def __init__(self, tier: RemoteTier, disk: LocalStore, there: _There, wanted: list[str]) -> None:
        ours = tier.signer.id if tier.signer is not None else ""
        self.kept: list[Pack] = []
        self.merged: list[tuple[Pack, list[Row]]] = []
        for pack, signer, rows in there.packs:
            if signer == ours and pack.size < _SMALL_PACK and all(disk.contains(row.digest) for row in rows):
                self.merged.append((pack, rows))
            else:
                self.kept.append(pack)
        held = there.held()
        fresh = [digest for digest in wanted if digest not in held]
        repaired = [digest for digest in there.lost if digest not in held and disk.contains(digest)]
        self.is_empty = there.found and not fresh and not there.lost and len(self.merged) < 2
        merged = [row.digest for _, rows in self.merged for row in rows]
        self.entries = list(dict.fromkeys([*merged, *repaired, *fresh]))


def _carry_out(
    tier: RemoteTier, remote: Guarded, disk: LocalStore, name: str, there: _There, plan: _Plan, sent: _Sent,
    progress: Progress | None,
) -> bool:  # fmt: skip
    """Whether the manifest is in place; False when another took its place meanwhile. Raises RemoteError."""
    packing = _Packing(tier, remote, disk, plan.entries, sent, progress)
    packs = [*plan.kept]
    sender = _Sender(tier, remote)
    for pack, whole in build(packing.members(), tier.scope, tier.signer, remote.max_value):
        packs.append(sender.put(pack, whole))
    # What could not be taken over stays reachable where it was.
    packs += [pack for pack, rows in plan.merged if any(row.digest not in packing.packed for row in rows)]
    manifest = Manifest(name, packs, [*there.singles, *packing.singles])
    return remote.put(workload_name(tier.scope, name), manifest.seal(tier.scope, tier.signer), replaces=there.tag)


class _Packing:
    """Makes members of packs out of entries; what is too large for one is published alone, into ``singles``."""

    def __init__(
        self, tier: RemoteTier, remote: Guarded, disk: LocalStore, digests: list[str], sent: _Sent,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self._tier, self._disk, self._digests, self._sent, self._progress = tier, disk, digests, sent, progress
        self._most = None if remote.max_value is None else remote.max_value // 2
        self.packed: set[str] = set()
        self.singles: list[str] = []

    def members(self) -> Iterator[tuple[str, Member]]:
        for number, (digest, entry, member) in enumerate(in_order(self._make, self._digests, _WORKERS, _AHEAD), 1):
            if self._progress is not None:
                self._progress(number, len(self._digests))
            if entry is None:
                self._sent.failed.add(digest)
            elif member is None:
                self._sent.foreign.add(digest)
            elif fits(member.packed) and (self._most is None or len(member.packed) < self._most):
                self._sent.sizes[digest] = len(member.packed)
                self.packed.add(digest)
                yield digest, member
            elif self._tier.publish(entry):
                self._sent.sizes[digest] = len(member.packed)
                self.packed.add(digest)
                self.singles.append(digest)
            else:
                self._sent.failed.add(digest)

    def _make(self, digest: str) -> tuple[str, Entry | None, Member | None]:
        entry = self._disk.read(digest)
        return digest, entry, Member(entry) if entry is not None and _ours(self._tier, entry) else None


def _ours(tier: RemoteTier, entry: Entry) -> bool:
    """Made here, or signed by this very key for this very scope."""
    said = entry.provenance
    mine = tier.signer.id if tier.signer is not None else ""
    return wire.SIGNER not in said or (said[wire.SIGNER] == mine and said.get(wire.SCOPE) == tier.scope)


class _Sender:
    """Puts packs. Those that an interrupted push left are not sent again.

    Packs go out in order, so once one was not there it is not asked for those that follow.
    """

    def __init__(self, tier: RemoteTier, remote: Guarded) -> None:
        self._tier, self._remote = tier, remote
        self._trust = with_ourselves(tier)
        self._asks = True

    def put(self, pack: Pack, whole: bytes) -> Pack:
        """The pack as it lies there, under a seal that counts. A name taken by something else is taken back.

        Raises RemoteError.
        """
        name = pack_name(self._tier.scope, pack.id)
        if self._asks and len(whole) >= _ASK_FROM:
            try:
                return self._take_over(name, pack, whole, self._remote.get(name, STATEMENT_LIMIT))
            except AbsentError:
                self._asks = False
        if self._remote.put(name, whole):
            self._tier.counters.add("remote.puts")
            self._tier.counters.add("remote.bytes_written", len(whole))
            return pack
        return self._take_over(name, pack, whole, self._remote.get(name, STATEMENT_LIMIT))

    def _take_over(self, name: str, pack: Pack, whole: bytes, found: Found) -> Pack:
        """The same members under the seal that is there, if that counts, for others may list it; else under ours."""
        try:
            sealed = Sealed(found.data)
            there = Pack(pack.id, found.size, bytes(found.data[: sealed.at]), pack.index)
            if not there.signer(self._tier.scope, self._trust) and self._tier.signer is not None:
                raise RejectedError("nobody signed it", "unsigned")
            there.rows()  # that it is as long as its index says
        except RejectedError as error:
            self._tier.counters.add(f"remote.rejected.{error.cause}")
            if not self._remote.put(name, whole, replaces=found.tag):
                raise BrokenError(f"{self._remote.shown}: {name} changes under our hands", "contended") from None
            self._tier.counters.add("remote.replaced")
            return pack
        self._tier.counters.add("remote.already_there")
        return there


def _requests(tier: RemoteTier) -> int:
    return sum(remote.requests for remote in tier.remotes)
