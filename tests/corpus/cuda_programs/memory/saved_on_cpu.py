"""Activations are kept in pinned host memory between forward and backward."""

import corpus_state
import torch

torch.manual_seed(13)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(30):
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = model(torch.randn(128, 256, device="cuda")).square().mean()
    held = torch.cuda.memory_allocated()
    loss.backward()
    torch.cuda.synchronize()
    optimizer.step()
    optimizer.zero_grad()
print(held, f"{loss.item():.6f}")
corpus_state.report(model=model)
