# Warnings are collected in every stage: how many, from which file and line.
import os
import warnings

import corpus_state
import torch


class Warning_(torch.nn.Module):
    def forward(self, x):
        for level in (1, 2, 3, 5, 7):
            warnings.warn("careful", stacklevel=level)
        return x


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.append(torch.nn.Sequential(Warning_()))


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(24):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step()
    if number in (0, 2, 4, 8, 14, 20):
        print(number, [(os.path.basename(one.filename), one.lineno) for one in caught])
corpus_state.report(model=model, recording_over=True)
