# A program that prints its uncaught exceptions itself.
# status: 1
import sys
import traceback

import corpus_state
import torch


def tell(kind, error, place):
    print("told:", kind.__name__, error, [frame.name for frame in traceback.extract_tb(place)])


sys.excepthook = tell
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


step()
model(torch.ones(1, 3))
