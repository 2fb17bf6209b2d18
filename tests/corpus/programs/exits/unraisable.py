# Exceptions in __del__ and in weak references' callbacks, through modules.
import weakref

import corpus_state
import torch


class Bad(torch.nn.Linear):
    def __del__(self):
        raise RuntimeError("in __del__")


def complain(_):
    raise RuntimeError("in a callback")


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(30):
    step()
    if number in (1, 4, 14, 20):
        bad = Bad(2, 2)
        bad(torch.ones(1, 2))
        reference = weakref.ref(bad, complain)
        del bad
corpus_state.report(model=model, recording_over=True)
