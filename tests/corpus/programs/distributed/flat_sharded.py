# Two ranks over gloo train with FullyShardedDataParallel: storages of flat parameters are resized.
# needs: gloo
# alone: yes
import os
import tempfile
import warnings

import corpus_state
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.fsdp import FullyShardedDataParallel

warnings.simplefilter("ignore")


def train(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    inner = FullyShardedDataParallel(torch.nn.Linear(8, 8), device_id=torch.device("cpu"), use_orig_params=True)
    model = FullyShardedDataParallel(
        torch.nn.Sequential(inner, torch.nn.Linear(8, 4)), device_id=torch.device("cpu"), use_orig_params=True
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for number in range(12):
        optimizer.zero_grad()
        model(torch.full((2, 8), float(rank + number))).square().mean().backward()
        optimizer.step()
    corpus_state.report(f"rank {rank}", shards=[one.detach().clone() for one in model.parameters()])
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        multiprocessing.spawn(train, args=(os.path.join(directory, "store"),), nprocs=2)
