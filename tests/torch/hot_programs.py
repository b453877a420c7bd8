"""The program that ``test_generated`` makes others of, and that eight ranks build a package of."""

from __future__ import annotations

PROGRAM = """
import torch
from torch import nn
FACTOR = {factor}
TABLE = {table}

def helper(x, scale={default}):
    return {helper}

def make(value):
    def inner(x):
        return x * value{inner}
    return inner

closed = make({closed})

class Base(nn.Module):
    limit = {limit}
    def finish(self, x):
        return {finish}

class Model(Base):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.third = nn.{layer}
        self.k = {k}
        self.register_buffer("shift", torch.arange(4.0))
{override}
    def forward(self, x):
        x = self.{one}(x){order}
        x = torch.{function}(x)
        if self.k > {bound}:
            x = x + self.shift
        for at in range({loops}):
            x = helper(x) + TABLE[at % 2]
        return self.finish(self.third(closed(self.{two}(x)))) * FACTOR

def model():
    torch.manual_seed(0)
    made = Model().eval()
{after}    return made
"""

#: The program that has a package; every generated one begins as it and has some of its choices made anew.
PLAIN = {
    "factor": "2",
    "table": "[1, 2]",
    "default": "2",
    "helper": "x * scale",
    "inner": "",
    "closed": "2",
    "limit": "0.5",
    "finish": "x.clamp(max=self.limit)",
    "layer": "GELU()",
    "k": "2",
    "override": "",
    "one": "first",
    "two": "second",
    "order": "",
    "function": "tanh",
    "bound": "0",
    "loops": "1",
    "after": "",
}
