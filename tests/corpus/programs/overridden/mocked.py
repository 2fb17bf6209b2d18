# unittest.mock patches Module.__call__, an optimizer's step and backward, with autospec, in some steps.
from unittest import mock

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


counts = []
for number in range(24):
    if number % 3 == 1:
        called = torch.nn.Module.__call__
        with mock.patch.object(torch.nn.Module, "__call__", autospec=True, side_effect=called) as patched:
            step()
        counts.append(patched.call_count)
    elif number % 3 == 2:
        with mock.patch.object(optimizer, "step", wraps=optimizer.step) as patched:
            step()
        counts.append(patched.call_count)
    else:
        step()
print(counts)
corpus_state.report(model=model, recording_over=True)
