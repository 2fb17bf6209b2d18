# A high recursion limit, and a walk that needs it.
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


sys.setrecursionlimit(20000)


class Chain(torch.nn.Module):
    def forward(self, x, left=400):
        return x * 1.0 if left == 0 else self(x, left - 1)


chain = Chain()
for number in range(30):
    step()
    chain(torch.ones(2, requires_grad=True)).sum().backward()
corpus_state.report(model=model, recording_over=True)
