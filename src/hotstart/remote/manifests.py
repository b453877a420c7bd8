"""Manifests of named workloads: where they lie, and reading them so that *absent* and *unknown* stay apart."""

from __future__ import annotations

from ..errors import UsageError
from ..log import say
from ..trust.scope import Trusted, TrustList
from ..trust.seal import RejectedError, Sealed, Trust
from . import wire
from .packs import LARGEST_MANIFEST, Manifest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .contract import Found
    from .guard import Guarded
    from .tier import RemoteTier

_FIRST_READ = 1 << 20


def check_workload(name: str) -> str:
    """Raises UsageError for what is not one plain word."""
    allowed = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not allowed.issuperset(name) or name[0] in ".-":
        raise UsageError(
            f"a workload's name is letters, digits, '.', '_' and '-', the first not '.' or '-': not {name!r}"
        )
    return name


def workload_name(scope: str, name: str) -> str:
    return f"v1/{scope}/workloads/{name}"


def pack_name(scope: str, identity: str) -> str:
    return f"v1/{scope}/packs/{identity}"


def read_manifest(remote: Guarded, scope: str, name: str, trust: Trust) -> Manifest:
    """Raises AbsentError when there is none, RejectedError for one that does not count, RemoteError for no answer."""
    return open_manifest(remote, scope, name, trust, find_manifest(remote, scope, name))


def find_manifest(remote: Guarded, scope: str, name: str) -> Found:
    """What lies where the manifest would; nothing of it is checked. Raises AbsentError, RemoteError."""
    return remote.get(workload_name(scope, name), _FIRST_READ)


def open_manifest(remote: Guarded, scope: str, name: str, trust: Trust, found: Found) -> Manifest:
    """Raises RejectedError, RemoteError."""
    sealed = Sealed(found.data)
    sealed.check("workload", name, scope, trust)
    if sealed.length > LARGEST_MANIFEST or found.size != sealed.at + sealed.length:
        raise RejectedError("it is not as long as it says", "payload")
    raw = found.data
    if found.size > len(raw):
        rest = remote.get_range(workload_name(scope, name), len(raw), found.size - len(raw), found.tag)
        raw = b"".join((raw, rest))
    payload = memoryview(raw)[sealed.at :]
    sealed.check_payload(payload)
    said = sealed.statement
    return Manifest.read(bytes(wire.unpack(payload, said.encoding, said.size, LARGEST_MANIFEST)), name)


def note_rejected(tier: RemoteTier, remote: Guarded, what: str, error: RejectedError) -> None:
    """Count it and say it, once for each cause."""
    tier.counters.add(f"remote.rejected.{error.cause}")
    say("warning", f"{remote.shown}: {what} is not used: {error}", once=f"{what.split()[0]} {error.cause}")


def with_ourselves(tier: RemoteTier) -> Trust:
    """The judge of what is there already: our own signature counts, also where entries are signed but none are read.

    Else every push would take the place of the one before it.
    """
    signer = tier.signer
    known = tier.trust.trusted.find(signer.id) if signer is not None else None
    if signer is None or (known is not None and (known.revoked or known.covers(tier.scope))):
        return tier.trust
    ours = Trusted(signer.public, (*(known.scopes if known is not None else ()), tier.scope), "")
    return Trust(TrustList("", [*tier.trust.trusted, ours]), allow_unsigned=tier.trust.allow_unsigned)
