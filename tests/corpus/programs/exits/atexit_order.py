# Functions at exit: their order, what they print, and one that raises.
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


atexit.register(print, "registered first")
step()
atexit.register(print, "registered in the window")


class Failing:
    def __repr__(self):
        return "Failing()"

    def __call__(self):
        raise RuntimeError("at exit")


atexit.register(Failing())

for _ in range(29):
    step()
atexit.register(corpus_state.report, model=model, recording_over=True)
atexit.register(print, "registered last")
