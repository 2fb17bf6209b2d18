# The program closes its own standard streams before it ends.
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


print("last words", flush=True)
corpus_state.report()
sys.stdout.close()
os.close(2)
os.close(0)
for _ in range(30):
    step()
