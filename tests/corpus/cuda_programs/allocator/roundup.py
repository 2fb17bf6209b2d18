"""Batches of many sizes train a model under sizes rounded up to divisions of powers of two."""
# environment: PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:[256:1,512:2,1024:4,>:8]

import corpus_state
import torch

torch.manual_seed(14)
torch.cuda.set_per_process_memory_fraction(0.05)
model = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(45):
    rows = 1000 + 7001 * (step % 5)
    model(torch.randn(rows, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 15 == 14:
        torch.cuda.empty_cache()
    torch.cuda.synchronize()
print(torch.cuda.get_allocator_backend(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
print(torch.cuda.memory._snapshot()["allocator_settings"])
corpus_state.report(model=model)
