"""Which entries of this disk may be served here, of those that came from a remote.

They were checked when they came, by the settings of the process that asked for them. Another
process may trust fewer keys, read fewer scopes or no unsigned entries, or the key may have been
revoked meanwhile: what counts is the list as it is now. Entries that were made here are not
looked at.
"""

from __future__ import annotations

import os

from ..errors import UsageError
from ..log import say
from .scope import TrustList, parse_scopes
from .signing import default_trust_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..store.counters import Counters


class Admission:
    """The settings of one cache: ``trust``, ``scope`` and ``allow_unsigned`` of its arguments."""

    __slots__ = ("_allow_unsigned", "_counters", "_scopes", "_trusted")

    def __init__(self, settings: Mapping[str, Any], counters: Counters) -> None:
        self._counters = counters
        self._allow_unsigned = bool(settings["allow_unsigned"])
        self._trusted = TrustList("")
        self._scopes: list[str] = []
        try:
            self._scopes = parse_scopes(settings["scope"])
            trust = settings["trust"]
            self._trusted = TrustList.load(os.path.expanduser(trust) if trust else default_trust_file())
        except UsageError as error:
            say("warning", str(error), once="trust list")

    def admits(self, origin: tuple[str, str] | None) -> bool:
        """Whether what this key signed for that scope may be served; what was made here, always."""
        if origin is None:
            return True
        if self._is_admitted(*origin):
            return True
        self._counters.add("remote.rejected.stored")
        return False

    def _is_admitted(self, signer: str, scope: str) -> bool:
        trusted = self._trusted = self._trusted.current()
        entry = trusted.find(signer) if signer else None
        if entry is not None and entry.revoked:
            return False
        if self._allow_unsigned:
            return True
        return entry is not None and scope in self._scopes and entry.covers(scope)
