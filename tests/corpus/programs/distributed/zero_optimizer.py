# A ZeroRedundancyOptimizer and a post-local SGD wrapper over one rank.
# needs: gloo
import corpus_state
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
corpus_state.seed()
model = torch.nn.Linear(8, 4)
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(len(optimizer.state), type(optimizer.optim).__name__)
dist.destroy_process_group()
corpus_state.report(model=model)
