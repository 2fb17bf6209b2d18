# torch is imported in a thread, and trained with in the main one.
import threading

import corpus_state


def load():
    global torch
    import torch


thread = threading.Thread(target=load)
thread.start()
thread.join()
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
corpus_state.report(model=model)
