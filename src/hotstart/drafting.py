"""What a compile made, on its way into the store: ``Compiled`` for compilers, a checked ``Draft`` for the tiers."""

from __future__ import annotations

import os

from . import __version__
from .errors import UsageError
from .store.entry import Draft, encode_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .keys.key import Key
    from .store.entry import BytesLike

#: First bytes of machine code: ELF (cubins, shared libraries) and fat binaries.
_MACHINE_CODE = (b"\x7fELF", b"\x50\xed\x55\xba")


class Compiled:
    """What a ``compile`` callback may return instead of a bare mapping: artifacts with metadata.

    ``cost`` replaces the measured seconds, for those who know better. ``store=False``
    hands the result to the caller and keeps it out of the store: for a compiler that
    finds, once it has run, that the key did not say everything.
    """

    __slots__ = ("artifacts", "cost", "meta", "store")

    def __init__(
        self,
        artifacts: Mapping[str, BytesLike],
        *,
        meta: Mapping[str, object] | None = None,
        cost: float | None = None,
        store: bool = True,
    ) -> None:
        self.artifacts = artifacts
        self.store = store
        self.meta = meta
        self.cost = cost


def draft_of(key: Key, artifacts: Mapping[str, BytesLike], meta: Mapping[str, object] | None, cost: float) -> Draft:
    """A draft with our provenance. Raises UsageError and the like for misuse, before anything is written."""
    draft = Draft(key, artifacts, meta, cost, _encoded_provenance or _provenance())
    # Looked for in the encoded fields first: asking every field costs more than all the rest of a draft.
    if b":cuda/any/" in draft.about and key.portable:
        _refuse_machine_code(draft.artifacts)
    return draft


def _refuse_machine_code(artifacts: Mapping[str, bytes]) -> None:
    if any(data[:4] in _MACHINE_CODE for data in artifacts.values()):
        raise UsageError("the key says any CUDA device, the artifacts are machine code: use DeviceClass.cuda()")


_encoded_provenance = b""


def _provenance() -> bytes:
    """Who made the entries of this process; names no user, host or path."""
    global _encoded_provenance
    if not _encoded_provenance:
        import sys

        about = {"producer": f"hotstart {__version__}", "python": sys.version.split()[0], "platform": sys.platform}
        if hasattr(os, "uname"):
            about["machine"] = os.uname().machine
        _encoded_provenance = encode_plain("provenance", about)
    return _encoded_provenance
