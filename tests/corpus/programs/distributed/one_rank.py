# A process group of one rank: collectives of all kinds, asynchronous ones, and DDP with a hook.
# needs: gloo
import corpus_state
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
corpus_state.seed()
model = DistributedDataParallel(torch.nn.Linear(8, 4))
buckets = []


def hook(state, bucket):
    buckets.append(bucket.buffer().numel())
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


model.register_comm_hook(None, hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(30):
    step()
    values = torch.ones(3) * number
    dist.all_reduce(values, async_op=True).wait()
    gathered = [torch.empty(3)]
    dist.all_gather(gathered, values)
    dist.broadcast(values, 0)
    dist.barrier()
print(len(buckets), gathered)
dist.destroy_process_group()
corpus_state.report(model=model)
