"""Memory is taken from the caching allocator by address, as other libraries do, and given back."""

import corpus_state
import torch

torch.manual_seed(24)
model = torch.nn.Linear(128, 128).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held, seen = [], []
for step in range(30):
    held.append(torch.cuda.caching_allocator_alloc(5_000_000 + 1000 * step))
    model(torch.randn(64, 128, device="cuda")).square().mean().backward()
    if len(held) > 3:
        torch.cuda.caching_allocator_delete(held.pop(0))
    optimizer.step()
    optimizer.zero_grad()
    seen.append(torch.cuda.memory_allocated())
for address in held:
    torch.cuda.caching_allocator_delete(address)
print(seen, torch.cuda.memory_allocated())
corpus_state.report(model=model)
