# SIGTERM makes the program save its weights and end with a status of its own.
# status: 17
import os
import signal
import sys

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


def save(number, frame):
    torch.save(model.state_dict(), "saved.pt")
    print("saved")
    corpus_state.report(model=model)
    sys.exit(17)


signal.signal(signal.SIGTERM, save)
for number in range(30):
    step()
    if number == 20:
        os.kill(os.getpid(), signal.SIGTERM)
