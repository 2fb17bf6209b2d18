# Modules that return objects of all kinds: slots, named tuples, modules, functions, nothing, themselves in a cycle.
from collections import namedtuple
from types import SimpleNamespace

import corpus_state
import torch

Pair = namedtuple("Pair", "first second")


class Slots:
    __slots__ = ("tensor",)

    def __getattr__(self, name):
        raise RuntimeError("no such slot")


class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        out = self.inner(x)
        slots = Slots()
        slots.tensor = out
        cycle = [out]
        cycle.append(cycle)
        kinds = [
            slots,
            Pair(out, None),
            SimpleNamespace(out=out),
            self,
            lambda: out,
            None,
            cycle,
            {1: {2: out}},
            b"",
            3,
        ]
        return kinds[self.calls % len(kinds)], out


corpus_state.seed()
model = Odd()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(40):
    optimizer.zero_grad()
    kind, out = model(torch.randn(8, 8))
    out.square().mean().backward()
    optimizer.step()
print(type(kind).__name__)
corpus_state.report(model=model, recording_over=True)
