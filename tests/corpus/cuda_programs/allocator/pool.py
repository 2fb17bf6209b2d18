"""Some tensors of each step live in a memory pool of the program's own."""
# also: --passes memory,time

import corpus_state
import torch

torch.manual_seed(21)
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pool = torch.cuda.MemPool()
other = None
for step in range(30):
    with torch.cuda.use_mem_pool(pool):
        batch = torch.randn(1024, 512, device="cuda")
        output = model(batch)
    output.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 15:
        other = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(other):
            kept = torch.ones(3 << 20, device="cuda")
sizes = [sorted(segment["total_size"] for segment in one.snapshot()) for one in (pool, other)]
print(sizes, pool.use_count(), kept.sum().item(), pool.id != other.id)
del batch, output, kept
corpus_state.report(model=model)
del pool, other
torch.cuda.empty_cache()
print(torch.cuda.memory_reserved())
