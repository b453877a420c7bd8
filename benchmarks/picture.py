"""The picture in the README, drawn from the committed results: first call of a model, before and after.

Needs nothing measured anew: it reads ``results/h200/torch_compile.json``, which
``benchmarks/gpu/torch_compile.py`` printed on a machine with a GPU, and ``launch_torch.json``
of this run.
"""

from __future__ import annotations

import json
from pathlib import Path

from .common import Target, bars, figure, save_plot, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_GPU = Path(__file__).parent / "results" / "h200" / "torch_compile.json"
_MODELS = {"gpt": "GPT, 12 layers", "llama": "HF Llama, 16 layers", "resnet50": "resnet50"}


def run(out: Path, *, quick: bool) -> list[Target]:
    """Nothing is promised here; what is drawn was judged where it was measured."""
    panels = {"hotstart.torch.compile, one H200: first call, s": _torch_compile(json.loads(_GPU.read_text()))}
    here = out / "launch_torch.json"
    if here.exists():
        panels["hotstart run, 8-block transformer, two CPU cores: first call, s"] = _launch(
            json.loads(here.read_text())
        )
    else:
        say("picture: launch_torch has not been run, its half is left out")
    sizes = [len(values) for values in panels.values()]
    drawing, axes = figure(len(panels), 1, width=7.5, height=0.28 * sum(sizes) + 0.7 * len(sizes), ratios=sizes)
    for row, (title, values) in enumerate(panels.items()):
        bars(axes[row][0], title, values)
    save_plot(out, "picture", drawing)
    return []


def _torch_compile(results: dict[str, Any]) -> dict[str, float]:
    """The last run of each model: cold, torch's own caches warm, ours."""
    values: dict[str, float] = {}
    for model, title in _MODELS.items():
        found = [
            run["found"][model] for run in results["runs"] if run["found"].get(model, {}).get("ours", {}).get("hit")
        ]
        if found:
            for column, label in (("cold", "cold"), ("warm", "torch warm"), ("ours", "hotstart")):
                values[f"{title}: {label}"] = found[-1][column]["first s"]
    return values


def _launch(results: dict[str, Any]) -> dict[str, float]:
    return {name: found["first call s"] for name, found in results["runs"].items()}
