# DistributedDataParallel on two ranks, started by torchrun, with a communication hook.
# needs: gloo
# launch: -m torch.distributed.run --standalone --nproc-per-node 2
import os

import corpus_state
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
corpus_state.seed()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(20):
    optimizer.zero_grad()
    with model.no_sync() if number % 5 == 4 else torch.enable_grad():
        model(torch.full((2, 8), float(rank + number))).square().mean().backward()
    optimizer.step()
torch.save(model.module.state_dict(), f"weights-{rank}.pt")
if rank == 0:
    print("trained", dist.get_world_size(), os.environ["LOCAL_RANK"])
dist.destroy_process_group()
