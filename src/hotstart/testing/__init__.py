"""Public tools to test a store with: what the core is tested with itself.

    FailingIO, SlowIO, KillingIO   make the N-th system call of the store fail, be slow, be the last
    audit                          what is on the disk, counted without asking the store
    ContentStoreConformance        the contract of a content store, as a class of tests
    CacheConformance               the contract of a cache, likewise
    DiskCacheConformance           the same for a cache that outlives its process
    CacheMachine, EvictingMachine, LayeredMachine, RememberingMachine
                                   Hypothesis state machines against a plain dict
    RemoteConformance              the contract of a remote, as a class of tests
    seaweedfs, valkey              real servers on loopback to run it against

The suites and machines need pytest and Hypothesis, and load only when they are named.
"""

from __future__ import annotations

from .audit import Audit as Audit
from .audit import audit as audit
from .audit import open_descriptors as open_descriptors
from .faults import OPERATIONS as OPERATIONS
from .faults import FailingIO as FailingIO
from .faults import KillingIO as KillingIO
from .faults import SlowIO as SlowIO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .conformance import CacheConformance as CacheConformance
    from .conformance import ContentStoreConformance as ContentStoreConformance
    from .conformance import DiskCacheConformance as DiskCacheConformance
    from .machine import CacheMachine as CacheMachine
    from .machine import EvictingMachine as EvictingMachine
    from .machine import LayeredMachine as LayeredMachine
    from .machine import RememberingMachine as RememberingMachine
    from .remote import RemoteConformance as RemoteConformance
    from .servers import seaweedfs as seaweedfs
    from .servers import valkey as valkey

_HOMES = {
    "ContentStoreConformance": "conformance",
    "CacheConformance": "conformance",
    "DiskCacheConformance": "conformance",
    "CacheMachine": "machine",
    "EvictingMachine": "machine",
    "LayeredMachine": "machine",
    "RememberingMachine": "machine",
    "RemoteConformance": "remote",
    "seaweedfs": "servers",
    "valkey": "servers",
}

__all__ = ["OPERATIONS", "Audit", "FailingIO", "KillingIO", "SlowIO", "audit", "open_descriptors", *_HOMES]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hotstart.testing' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value
