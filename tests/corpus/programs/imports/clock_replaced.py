# The program replaces time.time and others by a clock that stands still and counts.
import time

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


reads = []
real = time.time, time.perf_counter, time.monotonic
step()
time.time = time.perf_counter = time.monotonic = lambda: reads.append(1) or 1e9
for _ in range(29):
    step()
time.time, time.perf_counter, time.monotonic = real
print(len(reads))
corpus_state.report(model=model, recording_over=True)
