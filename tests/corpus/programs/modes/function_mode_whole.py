# A mode around the whole training counts each torch function by name.
from collections import Counter

import corpus_state
import torch
from torch.overrides import TorchFunctionMode, resolve_name


class Counting(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names[resolve_name(function) or getattr(function, "__name__", "?")] += 1
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
