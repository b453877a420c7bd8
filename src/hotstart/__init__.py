"""hotstart: one cache for every GPU compiler. Compile once, start hot everywhere.

The public names live here and load on first use, so that ``import hotstart``
costs a start-up almost nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import compilers as compilers
    from . import torch as torch
    from .cache import Cache as Cache
    from .compilers.memoize import memoize_handle as memoize_handle
    from .drafting import Compiled as Compiled
    from .errors import AddressError as AddressError
    from .errors import ArtifactNameError as ArtifactNameError
    from .errors import CompileError as CompileError
    from .errors import HotstartError as HotstartError
    from .errors import SizeError as SizeError
    from .errors import StoreError as StoreError
    from .errors import UncacheableError as UncacheableError
    from .errors import UnsafeStoreError as UnsafeStoreError
    from .errors import UsageError as UsageError
    from .keys.device import DeviceClass as DeviceClass
    from .keys.functions import fingerprint as fingerprint
    from .keys.graph import CacheKey as CacheKey
    from .keys.graph import InputSpec as InputSpec
    from .keys.key import Key as Key
    from .keys.project import project_fingerprint as project_fingerprint
    from .keys.tensors import hash_value as hash_value
    from .keys.tensors import tensor_signature as tensor_signature
    from .launch.init import init as init
    from .opening import open as open
    from .store.content import ContentStore as ContentStore
    from .store.entry import Entry as Entry

__version__ = "0.1.0"

_HOMES = {
    "Cache": "cache",
    "Compiled": "drafting",
    "open": "opening",
    "ContentStore": "store.content",
    "Entry": "store.entry",
    "Key": "keys.key",
    "CacheKey": "keys.graph",
    "InputSpec": "keys.graph",
    "DeviceClass": "keys.device",
    "fingerprint": "keys.functions",
    "project_fingerprint": "keys.project",
    "hash_value": "keys.tensors",
    "tensor_signature": "keys.tensors",
    "memoize_handle": "compilers.memoize",
    "init": "launch.init",
    "compilers": "",
    "torch": "",
    "HotstartError": "errors",
    "CompileError": "errors",
    "UsageError": "errors",
    "SizeError": "errors",
    "AddressError": "errors",
    "ArtifactNameError": "errors",
    "UncacheableError": "errors",
    "StoreError": "errors",
    "UnsafeStoreError": "errors",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hotstart' has no attribute {name!r}")
    # __import__ rather than importlib: the latter costs more than this whole file. A name without a home is a package.
    module = __import__(f"hotstart.{home or name}", fromlist=[name])
    value = globals()[name] = getattr(module, name) if home else module
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
