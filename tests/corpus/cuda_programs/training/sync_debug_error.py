"""Calls that wait for the GPU are errors during the steps; one of the program's own is caught in each."""

import time

import corpus_state
import torch

torch.manual_seed(47)
model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
caught = 0
for _ in range(200):
    torch.cuda.set_sync_debug_mode("error")
    loss = model(torch.randn(64, 128, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    try:
        loss.item()
    except RuntimeError:
        caught += 1
    time.sleep(0.02)
print(caught, torch.cuda.get_sync_debug_mode())
torch.cuda.set_sync_debug_mode("default")
corpus_state.report(model=model, recording_over=True)
