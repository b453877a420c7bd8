"""The public face: the names people import, and that nothing else leaks out."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hotstart

NAMES = {
    "__version__", "open", "Cache", "Compiled", "Entry", "ContentStore",
    "Key", "CacheKey", "InputSpec", "DeviceClass",
    "fingerprint", "hash_value", "tensor_signature", "project_fingerprint", "memoize_handle", "compilers",
    "HotstartError", "UsageError", "SizeError", "AddressError", "ArtifactNameError",
    "UncacheableError", "CompileError", "StoreError", "UnsafeStoreError",
}  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert set(hotstart.__all__) == set(dir(hotstart)) == NAMES
    for name in NAMES:
        assert getattr(hotstart, name) is not None


def test_other_names_are_missing_in_the_usual_way() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hotstart.nonsense  # noqa: B018  # the access is the test


def test_every_error_is_in_the_one_tree() -> None:
    errors = [getattr(hotstart, name) for name in NAMES if name.endswith("Error")]
    assert all(issubclass(error, hotstart.HotstartError) for error in errors)
    assert issubclass(hotstart.UsageError, ValueError)
    assert issubclass(hotstart.StoreError, OSError)


def test_imports_run_downwards() -> None:
    """keys knows no store, the store knows no cache: asked of a process that imports only the lower one."""
    program = "import sys, {}; print(*[m for m in sys.modules if m.startswith('hotstart')])"
    for module, forbidden in (
        ("hotstart.keys.key", ("hotstart.store", "hotstart.cache", "hotstart.config", "hotstart.compilers")),
        ("hotstart.store.local", ("hotstart.cache", "hotstart.config", "hotstart.compilers")),
        ("hotstart.cache", ("hotstart.compilers", "hotstart.config", "hotstart.testing")),
    ):
        command = [sys.executable, "-c", program.format(module)]
        loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert not [name for name in loaded if name.startswith(forbidden)], module
