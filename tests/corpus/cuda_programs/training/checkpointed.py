"""Activation checkpointing of both kinds, with dropout whose random state is kept for the second forward."""

import time

import corpus_state
import torch
from torch.utils.checkpoint import checkpoint

torch.manual_seed(35)
blocks = torch.nn.ModuleList(
    torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Dropout(0.2), torch.nn.GELU(), torch.nn.Linear(1024, 256))
    for _ in range(4)
).cuda()
optimizer = torch.optim.Adam(blocks.parameters())
for _ in range(200):
    x = torch.randn(128, 256, device="cuda", requires_grad=True)
    for number, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=number % 2 == 0)
    loss = x.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
print(f"{loss.item():.6f}", torch.cuda.max_memory_allocated())
corpus_state.report(model=blocks, recording_over=True)
