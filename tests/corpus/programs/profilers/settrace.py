# A trace function of its own follows the lines of its own file.
import sys
from collections import Counter

import corpus_state
import torch

lines = Counter()


def trace(frame, event, argument):
    if frame.f_code.co_filename != __file__:
        return None
    lines[event, frame.f_lineno] += 1
    return trace


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


sys.settrace(trace)
for number in range(30):
    step()
print(sys.gettrace() is trace)
sys.settrace(None)
print(sorted(lines.items()))
corpus_state.report(model=model, recording_over=True)
