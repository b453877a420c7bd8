# mypy: ignore-errors
import torch
from report import report
from torch._dynamo.utils import counters


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(16, 32)

    def forward(self, x):
        return torch.softmax(torch.sin(self.up(x)), -1).sum(0)


with torch.no_grad():
    torch.manual_seed(0)
    model = Model()
    given = torch.ones(4, 16)
    torch.testing.assert_close(torch.compile(model)(given), model(given))
seen = counters["inductor"]
report(seen["fxgraph_cache_miss"], seen["fxgraph_cache_hit"])
