# Functions are registered with atexit in steps, one is taken back, and one trains on.
import atexit

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


for number in range(6):
    step()
    atexit.register(print, "registered in step", number)
atexit.unregister(step)
atexit.register(lambda: print(f"{step() > 0} at the end"))
atexit.register(lambda: corpus_state.report("at exit", model=model))
