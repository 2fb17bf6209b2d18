"""A process that computes on the CPU for a while forks a child, which is the first to use the GPU."""

import os

import corpus_state
import torch

torch.manual_seed(57)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
with torch.no_grad():
    for _ in range(60):
        model(torch.randn(8, 64))
child = os.fork()
if child == 0:
    try:
        moved = model.cuda()
        print("child", tuple(moved(torch.ones(4, 64, device="cuda")).shape), flush=True)
    finally:
        os._exit(0)
print("ended with", os.waitpid(child, 0)[1])
corpus_state.report(model=model)
