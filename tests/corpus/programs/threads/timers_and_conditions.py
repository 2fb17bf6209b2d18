# Timers and a queue between a thread that makes batches and the one that trains.
import queue
import threading

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
batches = queue.Queue(2)


def produce():
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        batches.put(torch.randn(8, 8, generator=generator))
    batches.put(None)


timer = threading.Timer(0.001, produce)
timer.start()
while (batch := batches.get()) is not None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
timer.join()
corpus_state.report(model=model, recording_over=True)
