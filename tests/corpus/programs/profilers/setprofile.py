# A profile function of its own counts calls in its own file.
import sys
from collections import Counter

import corpus_state
import torch

calls = Counter()


def profile(frame, event, argument):
    if frame.f_code.co_filename == __file__:
        calls[event, frame.f_code.co_name] += 1


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


sys.setprofile(profile)
for _ in range(30):
    step()
print(sys.getprofile() is profile)
sys.setprofile(None)
print(sorted(calls.items()))
corpus_state.report(model=model, recording_over=True)
