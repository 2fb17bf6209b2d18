"""Batches are copied from pinned memory without blocking, one ahead on a stream of its own."""

import time

import corpus_state
import torch

torch.manual_seed(12)
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
host = [torch.randn(256, 512).pin_memory() for _ in range(4)]
slots = [torch.empty(256, 512, device="cuda") for _ in range(2)]
copied = [torch.cuda.Event() for _ in slots]
used = [torch.cuda.Event() for _ in slots]
copier = torch.cuda.Stream()


def send(step: int) -> None:
    slot = step % 2
    with torch.cuda.stream(copier):
        used[slot].wait()
        slots[slot].copy_(host[step % 4], non_blocking=True)
        copied[slot].record()


send(0)
back = torch.empty(256, 1).pin_memory()
for step in range(200):
    send(step + 1)
    copied[step % 2].wait()
    output = model(slots[step % 2])
    output.square().mean().backward()
    used[step % 2].record()
    optimizer.step()
    optimizer.zero_grad()
    back.copy_(output.detach(), non_blocking=True)
    torch.cuda.synchronize()
    time.sleep(0.02)
print(host[0].is_pinned(), back.is_pinned(), f"{back.sum().item():.5f}")
corpus_state.report(model=model)
