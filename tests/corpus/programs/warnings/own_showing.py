# showwarning and formatwarning of its own.
import os
import sys
import warnings

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


def show(message, category, filename, lineno, file=None, line=None):
    print(category.__name__, os.path.basename(filename), lineno, message, file=sys.stderr)


warnings.showwarning = show


class Warning_(torch.nn.Module):
    def forward(self, x):
        warnings.warn(f"in step {number}", stacklevel=3)
        return x


model.append(Warning_())
for number in range(24):
    step()
corpus_state.report(model=model, recording_over=True)
