# The program starts itself anew once, with torch.
import os
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


for number in range(16):
    step()
print(f"{step():.6f}", sys.argv[1:], flush=True)
if not sys.argv[1:]:
    os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
corpus_state.report("again", model=model)
