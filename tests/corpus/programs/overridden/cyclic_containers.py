"""Inputs and outputs of modules are containers that hold themselves, are deep, large or never end."""

import collections
import itertools

import corpus_state
import torch

torch.manual_seed(21)
Pair = collections.namedtuple("Pair", "left right")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x, *others, **named):
        y = self.fc(x)
        out = {"y": y, "pair": Pair(y, [y])}
        out["self"] = out
        ring = [y]
        ring.append(ring)
        out["ring"] = ring
        deep = [y]
        for _ in range(20_000):
            deep = [deep]
        out["deep"] = deep
        return out


def flatten(deep):
    """Take a deep list apart; freeing it at once would need as many levels of C's stack."""
    while isinstance(deep, list) and deep and isinstance(deep[0], list):
        deep = deep.pop()


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
many = [torch.ones(1) for _ in range(3)] * 20_000
cyclic = {}
cyclic["again"] = [cyclic]
for step in range(14):
    out = model(
        torch.randn(2, 4),
        many,
        itertools.count(),
        cyclic,
        {number: number for number in range(50_000)},
        lazy=(n for n in range(3)),
    )
    out["y"].sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    flatten(out.pop("deep"))
    out["ring"].clear()
    out.clear()
corpus_state.report(model=model)
