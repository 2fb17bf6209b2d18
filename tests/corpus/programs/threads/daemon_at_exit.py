# Daemon threads have used a model and still wait when the program ends.
import threading

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


started, never = threading.Event(), threading.Event()


def wait_for_ever():
    with torch.no_grad():
        model(torch.ones(8, 8))
    started.set()
    never.wait()


threading.Thread(target=wait_for_ever, daemon=True, name="for ever").start()
started.wait()
for _ in range(30):
    step()
corpus_state.report(model=model)
