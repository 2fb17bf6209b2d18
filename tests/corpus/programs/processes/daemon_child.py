# A daemon process that is ended with the program, and one that outlives it a little.
import multiprocessing
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


def wait():
    time.sleep(60)


step()
process = multiprocessing.get_context("fork").Process(target=wait, daemon=True)
process.start()
for _ in range(30):
    step()
print(process.is_alive())
corpus_state.report(model=model, recording_over=True)
