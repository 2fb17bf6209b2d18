# A finally block replaces the exception, and a context manager swallows it.
import contextlib

import corpus_state
import torch


class Failing(torch.nn.Module):
    def forward(self, x):
        raise ValueError


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


failing = torch.nn.Sequential(Failing())


def swallow():
    try:
        failing(torch.ones(1))
    finally:
        return "swallowed"


for number in range(30):
    step()
    with contextlib.suppress(ValueError):
        failing(torch.ones(1))
    if number in (1, 4, 14, 20):
        print(number, swallow())
corpus_state.report(model=model, recording_over=True)
