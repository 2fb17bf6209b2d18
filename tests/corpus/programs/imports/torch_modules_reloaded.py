# Modules of torch are reloaded and looked up by name while training goes on.
import importlib
import sys

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(24):
    step()
    if number == 3:
        again = importlib.reload(sys.modules["torch.optim.sgd"])
        print(again.SGD is type(optimizer), again.SGD.__name__)
    if number == 8:
        importlib.invalidate_caches()
        print(importlib.import_module("torch.nn.modules.linear").Linear is torch.nn.Linear)
optimizer = sys.modules["torch.optim.sgd"].SGD(model.parameters(), lr=0.01)
print(f"{step() > 0}")
corpus_state.report(model=model)
