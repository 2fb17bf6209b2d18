# The training runs in a thread while the main thread waits.
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


def train():
    for _ in range(30):
        step()
    corpus_state.report("in the thread", model=model)


thread = threading.Thread(target=train, name="trainer")
thread.start()
thread.join()
corpus_state.report(model=model)
