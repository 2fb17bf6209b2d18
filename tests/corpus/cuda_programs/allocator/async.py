"""Batches of many sizes train a model under CUDA's own asynchronous allocator."""
# environment: PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync TORCH_CPP_LOG_LEVEL=ERROR

import hashlib
import time

import torch

torch.manual_seed(14)
model = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(200):
    rows = 1000 + 7001 * (step % 5)
    model(torch.randn(rows, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 15 == 14:
        torch.cuda.empty_cache()
    torch.cuda.synchronize()
    time.sleep(0.02)
weights = b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters())
print(torch.cuda.get_allocator_backend(), hashlib.sha256(weights).hexdigest())
print(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
