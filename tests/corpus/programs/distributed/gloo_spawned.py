# Two ranks over gloo, started by the program, train the same weights by all_reduce.
# needs: gloo
# alone: yes
import os
import tempfile

import corpus_state
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def train(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number in range(20):
        optimizer.zero_grad()
        model(torch.full((2, 8), float(rank + number))).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
    corpus_state.report(f"rank {rank}", model=model)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        multiprocessing.spawn(train, args=(os.path.join(directory, "store"),), nprocs=2)
    print("both ranks ended")
