"""A space of configurations: no order, exact values, whatever the configurations are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotstart import Cache, UncacheableError, UsageError
from hotstart.compilers.space import Space
from hotstart.compilers.tuning import TuningCache
from hotstart.keys.digest import encode

SPACE = [{"block": block, "warps": warps} for block in (32, 64, 128) for warps in (4, 8)]
BEST = {"block": 64, "warps": 8}


def tuning(root: Path) -> TuningCache:
    return TuningCache(Cache(root), tuner="bench 1", toolchain="triton 3.9", device="NVIDIA H200", driver="580.65")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_space_has_no_order_and_exact_values() -> None:
    space = Space(SPACE)
    same = [
        Space(list(reversed(SPACE))),
        Space([dict(reversed(list(config.items()))) for config in SPACE]),
        Space([*SPACE, *SPACE]),
        Space({"warps": (8, 4), "block": [128, 64, 32]}),
    ]
    assert all(encode(other.data) == encode(space.data) for other in same)
    exact = [Space([value]).data for value in (1, True, 1.0, "1", (1,), [1], {"a": 1}, {"a": True}, None)]
    assert len({encode(data) for data in exact}) == len(exact)
    assert space.configs[space.number({"warps": 8, "block": 64})] == BEST


@pytest.mark.parametrize("wrong", [[], {}, {"block": []}, "abc", 5, None, {"block": "64"}, {"block": 64}])
def test_what_is_no_space_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError):
        Space(wrong)


def test_a_configuration_without_a_form_is_refused() -> None:
    with pytest.raises(UncacheableError):
        Space([{"stream": object()}])
    with pytest.raises(UsageError, match="not in the space"):
        Space(SPACE).number({"block": 64})


def test_triton_configurations_are_taken_as_they_are(root: Path, tmp_path: Path) -> None:
    triton = pytest.importorskip("triton", reason="needs triton")

    def hook(arguments: Any) -> None:
        arguments["c"].zero_()

    configs = [
        triton.Config({"BLOCK": 64}, num_warps=4),
        triton.Config({"BLOCK": 64}, num_warps=8),
        triton.Config({"BLOCK": 64}, num_warps=8, maxnreg=128),
        triton.Config({"BLOCK": 64}, num_warps=8, pre_hook=hook),
    ]
    found = tuning(root).get_or_tune("k", 1, configs, lambda config: 1 / config.num_warps + bool(config.maxnreg))
    assert found.best in (configs[1], configs[3]) and len(found.timings) == 4
    again = tuning(root).get_or_tune("k", 1, [*reversed(configs)], lambda config: pytest.fail("measured again"))
    assert again.best is found.best
    text = tmp_path / "kernel.ptx"
    spaces = []
    for content in ("one", "two"):
        text.write_text(content)
        spaces.append(encode(Space([triton.Config({}, ir_override=str(text))]).data))
    assert spaces[0] != spaces[1], "the file stands in the configuration by name only"
