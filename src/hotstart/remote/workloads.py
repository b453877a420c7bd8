"""Named workloads: all the entries that a program needs, pushed by one machine (``pushing``), pulled by every other.

A pull is one request for the manifest and one ranged read a pack for what is missing
here; what is present is not fetched, so a pull that was interrupted goes on where it
ended.
"""

from __future__ import annotations

import threading
from queue import Queue

from ..log import say
from ..store.entry import Draft
from ..trust.seal import RejectedError
from .contract import AbsentError, RemoteError, in_parallel
from .manifests import check_workload, note_rejected, pack_name, read_manifest
from .streams import Workers, members_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..store.local import LocalStore
    from .contract import Bytes
    from .guard import Guarded
    from .packs import Manifest, Pack, Row
    from .streams import Members
    from .tier import RemoteTier

    Progress = Callable[[int, int], object]

#: Packs on their way at the same time.
_STREAMS = 2

#: Threads that check and keep what came.
_WORKERS = 2

#: What came and waits for a worker, in pieces of a stream.
_WAITING = 4


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
    before = requests_of(tier)
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
    if done.gone:
        say(
            "warning",
            f"{tier.remotes[-1].shown}: {done.gone} entries of workload {name} are gone from there;"
            f" `hotstart push {name}` on a machine that has them repairs it",
            once=f"gone {name}",
        )
    done.requests = requests_of(tier) - before
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
    tier.counters.add("remote.pulled", done.entries - entries)
    tier.counters.add("remote.bytes_read", done.bytes - size)


def _pull_single(tier: RemoteTier, disk: LocalStore, digest: str, done: Transfer) -> None:
    if disk.contains(digest):
        done.present += 1
        return
    entry, doubt = tier.find(digest)
    if entry is not None and disk.write(Draft.of(entry)):
        done.entries += 1
        done.bytes += entry.size
    else:
        done.failed += 1
        done.gone += entry is None and doubt is None


def requests_of(tier: RemoteTier) -> int:
    return sum(remote.requests for remote in tier.remotes)
