# An optimizer whose state is a mapping that makes entries when it is asked.
from collections import defaultdict

import corpus_state
import torch


class Lazy(defaultdict):
    asked = []

    def __missing__(self, key):
        Lazy.asked.append("missing")
        return super().__missing__(key)

    def items(self):
        Lazy.asked.append("items")
        return super().items()

    def values(self):
        Lazy.asked.append("values")
        return super().values()

    def __iter__(self):
        Lazy.asked.append("iter")
        return super().__iter__()


corpus_state.seed()
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters())
optimizer.state = Lazy(dict)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(Lazy.asked)
corpus_state.report(model=model, recording_over=True)
