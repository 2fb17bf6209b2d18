# A segmentation fault with faulthandler: only that it ends like this is looked at.
# status: -11
# allowed: walks frames
import ctypes
import faulthandler

import corpus_state
import torch

faulthandler.enable()
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(4):
    step()
ctypes.string_at(0)
