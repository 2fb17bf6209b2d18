"""A profiler of the program's own runs over four late steps, and counts kernels."""

import time

import corpus_state
import torch
from torch.profiler import ProfilerActivity, profile

torch.manual_seed(32)
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
own = None
for step in range(220):
    if step == 120:
        own = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        own.start()
    model(torch.randn(64, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    if step == 123:
        own.stop()
    time.sleep(0.02)
launches = {event.key: event.count for event in own.key_averages() if event.key in ("cudaLaunchKernel", "aten::addmm")}
print(launches, sum(event.count for event in own.key_averages() if event.device_type.name == "CUDA"))
corpus_state.report(model=model, recording_over=True)
