"""Calls that wait for the GPU are warned of, each time, with the line that made them."""
# also: --passes memory,time

import warnings

import corpus_state
import torch

warnings.simplefilter("always")
torch.manual_seed(48)
model = torch.nn.Linear(128, 128).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.cuda.set_sync_debug_mode("warn")
for step in range(20):
    loss = model(torch.randn(64, 128, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 3 == 0:
        loss.item()
torch.cuda.set_sync_debug_mode("default")
corpus_state.report(model=model)
