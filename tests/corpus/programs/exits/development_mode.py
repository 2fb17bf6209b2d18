# Python's development mode: warnings, checks and faulthandler are on.
# environment: PYTHONDEVMODE=1
import sys
import warnings

import corpus_state
import torch

warnings.simplefilter("ignore", DeprecationWarning)
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
print(sys.flags.dev_mode)
corpus_state.report(model=model, recording_over=True)
