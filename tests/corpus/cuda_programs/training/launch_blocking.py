"""Every kernel is waited for: CUDA_LAUNCH_BLOCKING."""
# environment: CUDA_LAUNCH_BLOCKING=1

import time

import corpus_state
import torch

torch.manual_seed(50)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(200):
    loss = model(torch.randn(64, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
print(f"{loss.item():.6f}")
corpus_state.report(model=model, recording_over=True)
