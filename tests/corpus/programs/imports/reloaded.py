# Modules of torch are reloaded, and one is deleted from sys.modules.
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


for number in range(30):
    step()
    if number in (1, 4, 14, 20):
        importlib.reload(sys.modules["torch.nn.utils.clip_grad"])
        del sys.modules["torch.optim.lr_scheduler"]
        importlib.import_module("torch.optim.lr_scheduler")
corpus_state.report(model=model, recording_over=True)
