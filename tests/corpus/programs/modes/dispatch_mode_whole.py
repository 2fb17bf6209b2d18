# A dispatch mode around the whole training counts operators by name.
from collections import Counter

import corpus_state
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names[str(function)] += 1
        return function(*args, **(kwargs or {}))


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


with Counting() as mode:
    for _ in range(30):
        step()
for name, calls in sorted(mode.names.items()):
    print(calls, name)
corpus_state.report(model=model, recording_over=True)
