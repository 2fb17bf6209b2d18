"""A channels-last network under cudnn.benchmark, which tries one algorithm so that executions are equal."""

import time

import corpus_state
import torch

torch.manual_seed(36)
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.benchmark_limit = 1
torch.backends.cudnn.deterministic = True
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3, padding=1),
    torch.nn.BatchNorm2d(32),
    torch.nn.ReLU(inplace=True),
    torch.nn.Conv2d(32, 64, 3, stride=2, padding=1),
    torch.nn.ReLU(inplace=True),
    torch.nn.Flatten(),
    torch.nn.Linear(64 * 16 * 16, 10),
).to("cuda", memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(200):
    images = torch.randn(16 + step % 2, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    loss = torch.nn.functional.cross_entropy(model(images), torch.arange(len(images), device="cuda") % 10)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
print(torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit, f"{loss.item():.6f}")
corpus_state.report(model=model, recording_over=True)
