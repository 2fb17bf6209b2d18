# Every method that walks a module's parts counts its calls.
from collections import Counter

import corpus_state
import torch

calls = Counter()


def counted(name):
    original = getattr(torch.nn.Module, name)

    def method(self, *args, **kwargs):
        calls[name] += 1
        return original(self, *args, **kwargs)

    return method


names = "parameters named_parameters buffers named_buffers children named_children modules named_modules".split()
Counting = type("Counting", (torch.nn.Sequential,), {name: counted(name) for name in names})
corpus_state.seed()
model = Counting(torch.nn.Linear(8, 16), Counting(torch.nn.BatchNorm1d(16)), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(30):
    step()
    if number in (0, 2, 3, 4, 5, 13, 14, 15):
        print(number, sorted(calls.items()))
with torch.no_grad():
    model.eval()(torch.ones(2, 8))
print(sorted(calls.items()))
corpus_state.report(model=model, recording_over=True)
