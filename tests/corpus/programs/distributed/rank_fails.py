# One of two ranks under torchrun raises; the launcher ends the other and tells of it.
# needs: gloo
# status: 1
# allowed: walks frames
# launch: -m torch.distributed.run --standalone --nproc-per-node 2
import os

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


for number in range(5):
    step()
if os.environ["RANK"] == "1":
    raise ValueError("rank 1 has had enough")
