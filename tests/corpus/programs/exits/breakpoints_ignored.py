# breakpoint() is called in steps, where the environment switches it off, and sys.exit in a generator ends it.
# status: 1
# environment: PYTHONBREAKPOINT=0
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


def loop():
    for number in range(100):
        breakpoint()
        yield step()
        if number == 6:
            sys.exit("seven steps are enough")


for loss in loop():
    print(f"{loss:.6f}")
