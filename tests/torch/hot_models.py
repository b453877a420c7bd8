"""Small models for the tests of ``hotstart.torch``: the same code in the test process and in the ones it starts."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

SCALE = 2.0
TABLE = {"shift": 1}


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.mix(self.norm(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(nn.functional.gelu(mixed.transpose(1, 2).reshape(b, t, d)))


class Former(nn.Module):  # type: ignore[misc]
    """A transformer with tied weights, a scalar parameter, a buffer, a plain tensor and a hook's place."""

    def __init__(self, width: int = 8, layers: int = 1) -> None:
        super().__init__()
        self.words = nn.Embedding(12, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(layers))
        self.head = nn.Linear(width, 12, bias=False)
        self.head.weight = self.words.weight
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("offset", torch.randn(1))
        self.plain = torch.randn(12)
        self.shift = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.words(x)
        for block in self.blocks:
            found = block(found)
        return helper(self.head(found)) / self.temperature + self.offset + self.plain + self.shift + TABLE["shift"]


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    note: str
    extra: Any = None


class Conv(nn.Module):  # type: ignore[misc]
    """A convolutional net that writes to a buffer and returns a structure."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor, *, double: bool = False) -> Answer:
        self.seen.add_(1)
        found = nn.functional.relu(self.norm(self.conv(x)))
        return Answer(found.mean((2, 3)) * (2 if double else 1), "conv", {"seen": self.seen + 0, "none": (None, 3)})


def plain_function(x: torch.Tensor, y: torch.Tensor, power: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.softmax(x @ y, -1) ** power, (x.sin() + y.sum()).relu()


def former(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return Former().eval()


def conv(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return Conv().eval()


def tokens() -> torch.Tensor:
    return torch.arange(10).reshape(2, 5) % 12


def image() -> torch.Tensor:
    return torch.linspace(-1, 1, 2 * 2 * 4 * 4).reshape(2, 2, 4, 4)


def matrices() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(-1, 1, 12).reshape(4, 3), torch.linspace(0, 1, 9).reshape(3, 3)
