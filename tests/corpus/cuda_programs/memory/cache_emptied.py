"""The cache is emptied in every step, and garbage is collected."""

import gc

import corpus_state
import torch

torch.manual_seed(30)
model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters())
reserved = []
for _ in range(30):
    loss = model(torch.randn(1024, 1024, device="cuda")).square().mean()
    torch.cuda.empty_cache()
    loss.backward()
    reserved.append(torch.cuda.memory_reserved())
    optimizer.step()
    optimizer.zero_grad()
    cycle = [torch.ones(1 << 20, device="cuda")]
    cycle.append(cycle)
    del cycle
    gc.collect()
    torch.cuda.empty_cache()
    reserved.append(torch.cuda.memory_reserved())
print(reserved, torch.cuda.memory_stats()["segment.all.allocated"])
corpus_state.report(model=model)
