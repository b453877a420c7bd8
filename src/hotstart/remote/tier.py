"""``RemoteTier``: the fleet's entries behind this machine's own. What ``Cache(remote=…)`` adds.

    v1/SCOPE/entries/ab/DIGEST     one entry, sealed
    v1/SCOPE/packs/DIGEST          many entries, sealed (see packs)
    v1/SCOPE/workloads/NAME        which packs a named workload needs
    v1/SCOPE/leases/DIGEST/N       who is compiling it (see flight)

Reading asks each remote of the chain, nearest first, in each scope that is read. What
is found far away fills what is near. What does not check counts as absent. Writing
goes out in the background. No method raises for what a remote does.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial

from ..errors import UsageError
from ..log import say
from ..store.counters import Counters
from ..trust.scope import TrustList, parse_scopes
from ..trust.seal import RejectedError, Sealed, Trust, seal
from ..trust.signing import MissingSignerError, SigningKey, default_key_file, default_trust_file
from . import wire
from .contract import AbsentError, RemoteError
from .flight import LEASE
from .guard import Guarded
from .leases import Leases
from .queue import Queue
from .url import open_remotes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..store.entry import Entry
    from .contract import Found, Remote

#: Asked for at first: most entries are smaller, and then this was the only round trip.
FIRST_READ = 4 << 20

#: What is larger comes in parts of this size, several at a time.
_PART = 8 << 20

#: How long a miss is remembered: long enough for the second look before a compile, short enough for a fleet at work.
NEGATIVE = 2.0
_MOST_NEGATIVE = 10_000

#: The longest a normal end waits for what is queued.
EXIT_LIMIT = 10.0


class RemoteTier:
    """The remotes of a chain with their guards, a judge and, for who may write, a key.

    ``scopes``  the first is written, all are read, in this order
    ``signer``  a key, or how to get at one: called when something is first to be published
    ``state``   a directory of this host for the breakers; empty for none
    """

    def __init__(
        self,
        remotes: list[Remote],
        counters: Counters,
        trust: Trust,
        scopes: list[str],
        *,
        signer: SigningKey | Callable[[], SigningKey | None] | None = None,
        state: str = "",
        limit: int = wire.LARGEST_ENTRY,
        lease: float = LEASE,
    ) -> None:
        self.remotes = [Guarded(remote, counters, state) for remote in remotes]
        self.counters = counters
        self._trust = trust
        self.scopes = scopes
        self._signer = signer
        self.limit = limit
        self.hits = 0
        self.saved = 0.0
        self.queue = Queue(counters, EXIT_LIMIT)
        self.leases = Leases(self, lease)
        self._lock = threading.Lock()
        self._absent: dict[str, float] = {}
        #: What was found and did not check, by remote and name: a good one may take its place.
        self._rejected: dict[tuple[str, str], str] = {}

    @property
    def scope(self) -> str:
        """The one that is written."""
        return self.scopes[0]

    @property
    def trust(self) -> Trust:
        """The judge, by the list as it is now."""
        return self._trust.refresh()

    # -- reading ---------------------------------------------------------------

    def read(self, digest: str, *, fresh: bool = False) -> Entry | None:
        """The entry, checked down to its signature, or None. ``fresh`` asks again what was absent a moment ago."""
        if not fresh and self._absent.get(digest, 0.0) > time.monotonic():
            self.counters.add("remote.negative")
            return None
        return self.find(digest)[0]

    def find(self, digest: str) -> tuple[Entry | None, RemoteError | None]:
        """The entry, or None and why that is not certain, if it is not."""
        doubt: RemoteError | None = None
        for scope in self.scopes:
            name = entry_name(scope, digest)
            for number, remote in enumerate(self.remotes):
                try:
                    found = remote.get(name, FIRST_READ)
                    entry, raw = self._open(remote, name, found, digest, scope)
                except AbsentError:
                    continue
                except RemoteError as error:
                    doubt = error  # counted by its guard
                    continue
                except RejectedError as error:
                    self._reject(remote, name, found.tag, error)
                    continue
                self._fill(self.remotes[:number], name, raw)
                with self._lock:
                    self.hits += 1
                    self.saved += entry.cost
                self.counters.add("remote.bytes_read", len(raw))
                return entry, None
        if doubt is None:
            self._remember_absent(digest)
        return None, doubt

    def _open(self, remote: Guarded, name: str, found: Found, digest: str, scope: str) -> tuple[Entry, Any]:
        """The entry, and the object as it travels. Raises RejectedError, RemoteError."""
        sealed = Sealed(found.data)
        sealed.check("entry", digest, scope, self.trust)
        if sealed.length > self.limit:
            raise RejectedError(f"its payload is {sealed.length} bytes", "oversize")
        end = sealed.at + sealed.length
        if found.size != end:
            raise RejectedError("it is not as long as it says", "payload")
        raw = found.data
        if end > len(raw):
            ranges = [(at, min(_PART, end - at)) for at in range(len(raw), end, _PART)]
            raw = b"".join((raw, *remote.get_ranges(name, ranges, found.tag)))
        payload = memoryview(raw)[sealed.at :]
        sealed.check_payload(payload)
        return wire.open_statement(sealed.statement, payload, self.limit), raw

    def _reject(self, remote: Guarded, name: str, tag: str, error: RejectedError) -> None:
        self.counters.add(f"remote.rejected.{error.cause}")
        if self._may_replace(error.cause):
            self._rejected[remote.identity, name] = tag
        say("warning", f"{remote.shown}: {name} is not used: {error}", once=f"rejected {error.cause}")

    def _may_replace(self, cause: str) -> bool:
        """Not what may be a good one that only we cannot tell: without ``cryptography``, or without a list to go by.

        Who signs but does not trust its own key has none for this scope: its own objects would not count either,
        and it would replace those of all others at every turn. Who has one takes names back from strangers.
        """
        if cause == "untrusted":
            signer = self.signer
            ourselves = self.trust.trusted.find(signer.id) if signer is not None else None
            return ourselves is not None and ourselves.covers(self.scope)
        return cause != "missing_extra"

    def _fill(self, nearer: list[Guarded], name: str, raw: Any) -> None:
        """What came from further away goes, as it is, to what is nearer."""
        for remote in nearer:
            if remote.is_writable() and not _too_large(remote, len(raw)):
                self.queue.add(partial(self._send, remote, name, raw), len(raw))

    def _remember_absent(self, digest: str) -> None:
        with self._lock:
            if len(self._absent) >= _MOST_NEGATIVE:
                self._absent.clear()
            self._absent[digest] = time.monotonic() + NEGATIVE

    # -- writing ---------------------------------------------------------------

    @property
    def signer(self) -> SigningKey | None:
        with self._lock:
            if self._signer is not None and not isinstance(self._signer, SigningKey):
                self._signer = self._signer()
            return self._signer

    @property
    def writable(self) -> bool:
        """Whether what is made here can be published: somewhere to, and a key to sign with."""
        if not any(remote.is_writable() for remote in self.remotes):
            return False
        return self.signer is not None or self.trust.allow_unsigned

    def offer(self, entry: Entry) -> bool:
        """Publish in the background; whether it was queued. What came from a remote is not signed again."""
        if not self.writable or wire.came_from_a_remote(entry):
            return False
        if entry.size > self.limit:
            self.counters.add("remote.refused.oversize")
            return False
        return self.queue.add(lambda: self.publish(entry), entry.size)

    def publish(self, entry: Entry) -> bool:
        """Seal it and put it to every remote that takes it; whether at least one has it now."""
        raw = self.seal_entry(entry)
        name = entry_name(self.scope, entry.digest)
        stored = False
        for remote in self.remotes:
            if not remote.read_only and not _too_large(remote, len(raw)):
                stored = self._send(remote, name, raw) or stored
        with self._lock:
            self._absent.pop(entry.digest, None)
        return stored

    def seal_entry(self, entry: Entry) -> bytes:
        packed, encoding, size = wire.pack_entry(entry)
        head = seal("entry", entry.digest, self.scope, packed, encoding=encoding, size=size, signer=self.signer)
        return head + packed

    def _send(self, remote: Guarded, name: str, raw: Any) -> bool:
        """Create it; in the place of one that did not check, replace it. Whether there is a good one now."""
        try:
            if remote.put(name, raw):
                self.counters.add("remote.puts")
                self.counters.add("remote.bytes_written", len(raw))
                return True
            tag = self._rejected.pop((remote.identity, name), "")
            if not tag:
                self.counters.add("remote.already_there")
                return True
            if remote.put(name, raw, replaces=tag):
                self.counters.add("remote.replaced")
                return True
        except RemoteError:
            pass  # counted by its guard
        return False

    # -- ends ------------------------------------------------------------------

    def flush(self, limit: float = EXIT_LIMIT) -> bool:
        """Wait for what is queued; whether all of it went out or was given up by its remote."""
        return self.queue.flush(limit)

    def close(self) -> None:
        self.flush()
        for remote in self.remotes:
            remote.close()

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self.hits, self.saved = 0, 0.0
        self.queue.after_fork()
        self.leases.after_fork()
        for remote in self.remotes:
            remote.after_fork()

    def statistics(self) -> dict[str, Any]:
        """What ``stats()`` shows under ``remote``: hits, requests, and every counter of ours that moved."""
        counted = self.counters.snapshot()
        ours = {
            name.removeprefix("remote."): int(count)
            for name, count in sorted(counted.items())
            if name.startswith("remote.")
        }
        requests = sum(remote.requests for remote in self.remotes)
        return {"hits": self.hits, "requests": requests, "remotes": [r.shown for r in self.remotes], **ours}


def entry_name(scope: str, digest: str) -> str:
    return f"v1/{scope}/entries/{digest[:2]}/{digest}"


def _too_large(remote: Guarded, size: int) -> bool:
    return remote.max_value is not None and size > remote.max_value


def open_tier(
    remote: str,
    counters: Counters,
    *,
    scope: str = "main",
    trust: str = "",
    signing_key: str = "",
    allow_unsigned: bool = False,
    read_only: bool = False,
    state: str = "",
) -> RemoteTier:
    """The tier that settings describe. Raises UsageError for those that make no sense.

    A key that is missing or not private, and a list that cannot be read, are said in one
    line: then nothing is published, or nobody trusted, and local caching goes on.
    """
    remotes = open_remotes(remote, read_only=read_only)
    if not remotes:
        raise UsageError("remote is empty: a URL such as s3://bucket/prefix")
    trusted, said = TrustList(""), False
    try:
        trusted = TrustList.load(os.path.expanduser(trust) if trust else default_trust_file())
    except UsageError as error:
        say("warning", str(error), once="trust list")
        said = True
    if not len(trusted) and not allow_unsigned and not said:
        where = trusted.path or trust or default_trust_file()
        say("warning", f"{where} trusts no key: nothing from {remotes[0].shown} is used; `hotstart trust add`",
            once="trust nobody")  # fmt: skip
    signer = None
    if any(not each.read_only for each in remotes):
        signer = _load_signer(signing_key, quiet=allow_unsigned)
    scopes = parse_scopes(scope)
    return RemoteTier(
        remotes, counters, Trust(trusted, allow_unsigned=allow_unsigned), scopes, signer=signer, state=state
    )


def _load_signer(path: str, quiet: bool) -> SigningKey | None:
    """The key to sign with; None, and said unless it is no matter, where there is none that can be used."""
    where = os.path.expanduser(path) if path else default_key_file()
    if not path and not os.path.exists(where):
        if not quiet:
            say(
                "info",
                f"{where} does not exist: nothing is published; `hotstart trust keygen` makes one",
                once="no key",
            )
        return None
    try:
        return SigningKey.load(where)
    except (UsageError, MissingSignerError) as error:
        say("warning", f"{error}; nothing is published", once="signing key")
        return None
