"""The canonical encoding: no two values meet, and no value changes its form between machines."""

from __future__ import annotations

import enum
import math
import os
import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hotstart
from hotstart import UncacheableError
from hotstart.keys.digest import decode, digest_of, encode


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Config:
    warps: int
    stages: int = 2


Point = namedtuple("Point", "x y")

#: Things that somebody, somewhere, took for one another. Each must have a form of its own.
DISTINCT: list[Any] = [
    None, True, False, 0, 1, -1, 1.0, -0.0, 0.0, math.nan, math.inf, -math.inf, 1j, "", "1", b"", b"1",
    (), (1,), [], [1], {}, {1: 2}, {"1": 2}, {1: "2"}, set(), {1}, {"1"}, ((),), [[]], [()], (1, 2), (2, 1), [1, 2],
    [[1], 2], [[1, 2]], {"a": {"b": 1}}, {"a": 1, "b": 1}, slice(None), slice(1), slice(0, 1), slice(0, 1, 1), ...,
    Colour.RED, Colour.BLUE, Level.LOW, Config(4), Config(4, 3), Point(1, 2), 2**64, 2**4000, "a" * 100, "ä", "a\u0308",
    "\ud800", np.dtype("f4"), np.dtype("f8"), np.float32(1), np.float64(1), np.int32(1), np.int64(1),
    np.dtype([("x", "f4")]), range(3), OrderedDict(a=1), "None", "True", "N", "i1;", b"i1;",
]  # fmt: skip


def test_values_that_others_confuse_all_differ() -> None:
    encoded = [encode(value) for value in DISTINCT]
    assert len(set(encoded)) == len(DISTINCT)


def test_order_of_mappings_and_sets_does_not_matter() -> None:
    assert encode({"a": 1, "b": 2}) == encode({"b": 2, "a": 1})
    assert encode({3, 1, 2}) == encode({1, 2, 3}) == encode(frozenset((2, 3, 1)))
    assert encode(MappingProxyType({"a": 1})) == encode({"a": 1})


def test_nan_is_one_value_and_buffers_are_bytes() -> None:
    assert encode(float("nan")) == encode(-float("nan")) == encode(math.inf - math.inf)
    assert encode(bytearray(b"x")) == encode(memoryview(b"x")) == encode(b"x")


def test_dtype_is_the_same_however_it_is_written() -> None:
    assert encode(np.dtype("float32")) == encode(np.float32) == encode(np.dtype("<f4"))
    assert encode(np.dtype(">f4")) != encode(np.dtype("<f4"))


@pytest.mark.parametrize(
    ("value", "field", "hint"),
    [
        ({"options": [1, object()]}, "['options'][1]", "no canonical form"),
        ([lambda: 0], "[0]", "hotstart.fingerprint"),
        ([np.zeros(3)], "[0]", "tensor_signature"),
        ([__import__("pathlib").Path("x")], "[0]", "differs between machines"),
    ],
)
def test_what_has_no_form_is_refused_by_name(value: object, field: str, hint: str) -> None:
    with pytest.raises(UncacheableError) as caught:
        encode(value)
    assert caught.value.field == field
    assert hint in str(caught.value)


def test_a_cycle_is_refused_rather_than_followed() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(UncacheableError, match="cycle"):
        encode(loop)


def test_hidden_state_is_refused() -> None:
    class Labelled(dict[str, int]):
        pass

    value = Labelled(a=1)
    assert encode(value) != encode({"a": 1})
    value.secret = 1  # type: ignore[attr-defined]
    with pytest.raises(UncacheableError, match="attributes"):
        encode(value)
    config = Config(4)
    config.secret = 1  # type: ignore[attr-defined]
    with pytest.raises(UncacheableError, match="secret"):
        encode(config)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers() | st.binary(), inner)
    ),
    max_leaves=20,
)


def same(a: Any, b: Any) -> bool:
    """Equal in type too, and NaN equal to itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        pairs = {(type(key), key): value for key, value in b.items()}
        return len(a) == len(b) and all(same(value, pairs.get((type(key), key))) for key, value in a.items())
    return bool(a == b)


@given(plain)
def test_plain_data_comes_back_as_it_went_in(value: object) -> None:
    assert same(decode(encode(value)), value)


@given(plain, plain)
def test_different_data_never_shares_an_encoding(a: object, b: object) -> None:
    assert (encode(a) == encode(b)) == same(a, b)


@given(st.binary(max_size=60))
def test_garbage_never_decodes_to_anything_but_an_error_or_plain_data(data: bytes) -> None:
    try:
        value = decode(data)
    except ValueError:
        return
    encode(value)


@given(plain, st.data())
def test_damaged_encodings_do_not_crash_the_decoder(value: object, data: st.DataObject) -> None:
    raw = bytearray(encode(value))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        decode(bytes(raw))
    except ValueError:
        pass  # the refusal that is expected


def test_digest_is_blake3() -> None:
    # The published test vector of the empty input; a megabyte takes the threaded path.
    assert digest_of(b"") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert digest_of(bytes(1 << 20)) == digest_of(memoryview(bytearray(1 << 20)))


def test_a_forked_child_hashes_large_data() -> None:
    """BLAKE3's threads do not survive a fork; a child that relied on them would wait for ever."""
    program = """
import os, signal
from hotstart.keys.digest import digest_of
large = bytes(32 << 20)
expected = digest_of(large)
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(0 if digest_of(large) == expected else 1)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(hotstart.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=environment).returncode == 0


PROGRAM = """
import enum, hotstart
from hotstart.keys.digest import digest_of, encode
class Colour(enum.Enum):
    RED = 1
Colour.__module__ = "golden"; Colour.__qualname__ = "Colour"
print(digest_of(encode([None, True, False, 0, -1, 2**70, 1.0, -0.0, float("nan"), 1j, "ä\\ud800", b"\\0\\xff"])))
print(digest_of(encode({"z": (1, [2]), "a": {3, 1, 2}, 1: slice(0, None, 2), (1,): ..., "r": range(3)})))
print(digest_of(encode([Colour.RED])))
print(hotstart.Key("nvrtc", source="k", arch="sm_90", options=["-O3"], name="k", nothing=None).digest)
print(hotstart.CacheKey(graph_hash="abc", inputs=[hotstart.InputSpec((1, -1), "float32")],
                        device=hotstart.DeviceClass.cuda(9, 0)).to_storage_key())
print(hotstart.Key("x", device=hotstart.DeviceClass.cpu("x86_64", "avx512"), any=hotstart.DeviceClass.cuda_any("ptx"),
                   amd=hotstart.DeviceClass.rocm("gfx942")).digest)
"""

GOLDEN_LINES = """\
918de980c463ae9cacf6282412dd0f9575f6c79300c16ee88409c32eab1c6c36
d17f8aa2a7f5ba71d87044eab788dfe32e9c04755c93f6e4716b4d2a89bc21d2
8ded01b24dc0b95d8d8afb92a367c9106019e1d0d3a2c67596f758287968a5da
2ee4064376ebeeffd5ec2ea6afd53bacfcea15e35dab05b467af27926caf0719
9d4f9318e130e1c5a3c8cbc2e2aff83b8520976b499b6389ee114e81d29d906f
d1ea85f6692c8caf7f3ca859d50e626cea8b7726ff354c5dc5e46c31e22069f9
"""


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_golden_digests_hold_whatever_the_surroundings(seed: str, tmp_path: Any) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(hotstart.__file__).parents[1]),
        "PYTHONHASHSEED": seed,
        "HOME": str(tmp_path),
        "USER": f"user{seed}",
        "LC_ALL": "C" if seed == "0" else "C.UTF-8",
        "TZ": "Asia/Kathmandu",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == GOLDEN_LINES
