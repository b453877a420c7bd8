"""Keeping a remote in shape: what is old, what nobody refers to, what is too much. From listings, without payloads.

Ages are those that the remote's own clock gave. Only manifests are read, for they alone
say which packs are needed. A manifest that is there and cannot be read, or that does not
count here, may need any pack of its scope: then none of them is removed, and that is said.
"""

from __future__ import annotations

import time

from ..errors import UsageError
from ..log import say
from ..store import files
from ..store.entry import DamagedError, Summary
from ..trust.scope import check_scope
from ..trust.seal import RejectedError
from .contract import AbsentError, RemoteError
from .manifests import pack_name, read_manifest, with_ourselves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..store.local import LocalStore
    from .contract import Item
    from .guard import Guarded
    from .tier import RemoteTier

#: A lease this old belongs to nobody.
_LEASE_AGE = 86_400.0

#: A pack that no manifest speaks of may have been put just now, its manifest to follow.
_YOUNG_PACK = 3_600.0


class Collected:
    """What was removed, or would be, and what is left."""

    def __init__(self) -> None:
        self.objects = 0
        self.bytes = 0
        self.left_objects = 0
        self.left_bytes = 0
        self.requests = 0
        #: Manifests that nothing was learned from: the packs of their scopes were left alone.
        self.unread = 0

    def as_dict(self) -> dict[str, int]:
        return dict(vars(self))


def collect(
    tier: RemoteTier,
    *,
    older_than: float | None = None,
    max_size: int | None = None,
    scopes: list[str] | None = None,
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
) -> Collected:
    """Remove what is older than so many seconds, then the oldest until ``max_size`` bytes are left.

    Always: leases of a day ago, packs that no manifest speaks of. ``scopes`` limits it to
    those; else everything under the prefix. Raises RemoteError; what was removed until
    then is gone. Removing is never wrong: whoever misses something compiles it.
    """
    if older_than is not None and older_than < 0:
        raise UsageError(f"older_than is a number of seconds, not {older_than!r}")
    done = Collected()
    for remote in tier.remotes:
        if remote.read_only:
            continue
        before = remote.requests
        items: list[Item] = []
        for prefix in [f"v1/{check_scope(scope)}/" for scope in scopes] if scopes else ["v1/"]:
            items += remote.list(prefix)
        gone = _choose(tier, remote, items, older_than, max_size, clock(), done)
        names = {item.name for item in gone}
        if names and not dry_run:
            remote.delete(sorted(names))
        left = [item for item in items if item.name not in names]
        done.objects += len(gone)
        done.bytes += sum(item.size for item in gone)
        done.left_objects += len(left)
        done.left_bytes += sum(item.size for item in left)
        done.requests += remote.requests - before
    return done


def _choose(
    tier: RemoteTier, remote: Guarded, items: list[Item], older_than: float | None, max_size: int | None, now: float,
    done: Collected,
) -> list[Item]:  # fmt: skip
    kinds: dict[str, list[Item]] = {"entries": [], "packs": [], "workloads": [], "leases": []}
    for item in items:
        parts = item.name.split("/")
        if len(parts) > 3 and parts[2] in kinds:
            kinds[parts[2]].append(item)

    def is_old(item: Item) -> bool:
        return older_than is not None and now - item.modified > older_than

    gone = [item for item in kinds["leases"] if now - item.modified > _LEASE_AGE]
    gone += [item for item in kinds["entries"] + kinds["workloads"] if is_old(item)]
    kept_manifests = [item for item in kinds["workloads"] if not is_old(item)]
    packs: dict[str, set[str]] = {}
    for item in kinds["packs"]:
        packs.setdefault(_scope(item.name), set()).add(item.name)
    needs: dict[str, set[str]] = {}
    unread: set[str] = set()
    for item in kept_manifests:
        known = _needs(tier, remote, item.name)
        if known is None:
            unread.add(item.name)
            known = packs.get(_scope(item.name), set())
        needs[item.name] = known
    done.unread += len(unread)
    needed = set().union(*needs.values()) if needs else set()
    gone += [item for item in kinds["packs"] if item.name not in needed and now - item.modified > _YOUNG_PACK]
    if max_size is not None:
        chosen = {item.name for item in gone}
        left = [item for item in items if item.name not in chosen]
        excess = sum(item.size for item in left) - max_size
        # One that could not be read holds on to all packs of its scope: removing it would free nothing else.
        gone += _oldest([item for item in left if item.name not in unread], needs, excess)
    return gone


def _oldest(items: list[Item], needs: dict[str, set[str]], excess: int) -> list[Item]:
    """The oldest until ``excess`` bytes are gone. A pack goes with the last manifest that needs it, not before."""
    packs = {item.name: item for item in items if "/packs/" in item.name}
    needed = set().union(*needs.values()) if needs else set()
    gone: list[Item] = []
    waiting = dict(needs)
    for item in sorted(items, key=lambda item: item.modified):
        if excess <= 0:
            break
        if "/leases/" in item.name or item.name in needed:
            continue
        gone.append(item)
        excess -= item.size
        if item.name in waiting:
            mine = waiting.pop(item.name)
            for name in mine - set().union(*waiting.values()):
                if name in packs:
                    gone.append(packs[name])
                    excess -= packs[name].size
    return gone


def _needs(tier: RemoteTier, remote: Guarded, name: str) -> set[str] | None:
    """The packs that this manifest needs; None when that cannot be told."""
    _, scope, _, workload = name.split("/", 3)
    try:
        manifest = read_manifest(remote, scope, workload, with_ourselves(tier))
    except AbsentError:
        return set()  # removed since it was listed
    except (RemoteError, RejectedError) as error:
        say(
            "warning",
            f"{remote.shown}: workload {workload} of scope {scope} could not be read, so no pack of that scope is"
            f" removed: {error}",
            once=f"unread {name}",
        )
        return None
    return {pack_name(scope, pack.id) for pack in manifest.packs}


def _scope(name: str) -> str:
    return name.split("/", 2)[1]


def forget_signer(disk: LocalStore, key_id: str, *, dry_run: bool = False) -> list[str]:
    """Remove from the local store what came from a remote signed by this key; the digests of what that was.

    The other half of revoking a key: the trust list keeps out what is still to come,
    this removes what came before. Memory tiers of running processes keep theirs until they end.
    """
    found = []
    for digest, path in files.walk(f"{disk.root}/entries", 1):
        try:
            fd = files.open(path, files.READ)
            try:
                said = Summary(fd).described("provenance")
            finally:
                files.close_quietly(fd)
        except (OSError, DamagedError):
            continue  # gone meanwhile, or damaged: it is not served either
        if isinstance(said, dict) and said.get("signer") == key_id:
            if not dry_run:
                disk.delete(digest)
            found.append(digest)
    return found
