"""Pushing a named workload: packs first, the manifest last, so that a manifest never speaks of what is not there.

Pushing again sends only what is new, and what is gone from the remote; it merges small
packs. Of what is there already, packs of keys that the pusher does not trust, or that
nobody signed, are left out. What cannot be read is neither absent nor replaced: the push ends.
"""

from __future__ import annotations

from ..errors import UsageError
from ..trust.seal import STATEMENT_LIMIT, RejectedError, Sealed
from .contract import AbsentError, BrokenError, RefusedError, RemoteError
from .manifests import (
    check_workload,
    find_manifest,
    note_rejected,
    open_manifest,
    pack_name,
    with_ourselves,
    workload_name,
)
from .packs import LARGEST_PACK, Manifest, Member, Pack, build, fits
from .streams import in_order
from .tier import RemoteTier, entry_name
from .workloads import Transfer, requests_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..store.entry import Entry
    from ..store.local import LocalStore
    from .contract import Found
    from .guard import Guarded
    from .packs import Row
    from .workloads import Progress

#: Threads that pack what goes.
_WORKERS = 2

#: Entries that are packed before there is room for them in a pack: of sixteen megabytes at most, usually.
_AHEAD = 8

#: A pack smaller than this is merged into the next one that is pushed.
_SMALL_PACK = LARGEST_PACK // 2

#: Of a smaller pack it is not asked whether it is there: putting it costs no more, and says so too.
_ASK_FROM = 1 << 20

#: How often a push begins again because somebody else changed the workload meanwhile.
_ATTEMPTS = 4


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
    before = requests_of(tier)
    remote = _home(tier)
    sent = _Sent()
    for _ in range(_ATTEMPTS):
        there = _look(tier, remote, name)
        plan = _Plan(tier, disk, there, wanted)
        if plan.is_empty or _carry_out(tier, remote, disk, name, there, plan, sent, progress):
            done = sent.summary(wanted, there)
            done.requests = requests_of(tier) - before
            return done
    if not there.tag:
        where = workload_name(tier.scope, name)
        raise BrokenError(f"{remote.shown}: what lies at {where} can neither be read nor replaced: remove it", "taken")
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
    origin = entry.origin()
    return origin is None or origin == (tier.signer.id if tier.signer is not None else "", tier.scope)


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
