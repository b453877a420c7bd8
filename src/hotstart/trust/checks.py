"""Two digests of the same bytes, BLAKE3 and SHA-256; a reader compares the one that its processor computes faster.

Either alone settles it: what is signed fixes both, so other bytes would need a second
preimage of the one that is looked at. Processors differ by more than either costs: cores
with instructions for SHA-256 and narrow vectors check it four times faster than BLAKE3,
wide vectors without those instructions the other way round.
"""

from __future__ import annotations

from hashlib import sha256
from time import perf_counter

from .seal import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .seal import Bytes

#: BLAKE3 (32), SHA-256 (32).
SIZE = 64

_TRIAL = bytes(1 << 16)

_prefers_sha256: bool | None = None


def check_of(data: Bytes) -> bytes:
    """What ``matches`` compares with."""
    return digest(data) + sha256(data).digest()


def matches(data: Bytes, check: bytes) -> bool:
    """Whether these are the bytes that ``check`` was made of."""
    if prefers_sha256():
        return sha256(data).digest() == check[32:]
    return digest(data) == check[:32]


def prefers_sha256() -> bool:
    """Found out by trying, which takes less than a millisecond, once. Wrong for a busy moment, it costs time only."""
    global _prefers_sha256
    if _prefers_sha256 is None:
        seconds = {True: 1.0, False: 1.0}
        for _ in range(3):
            for is_sha256 in seconds:
                begun = perf_counter()
                _ = sha256(_TRIAL).digest() if is_sha256 else digest(_TRIAL)
                seconds[is_sha256] = min(seconds[is_sha256], perf_counter() - begun)
        _prefers_sha256 = seconds[True] < seconds[False]
    return _prefers_sha256
