# The garbage collector is off, and its thresholds are odd.
import gc

import corpus_state
import torch

gc.disable()
gc.set_threshold(1, 2, 3)
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


states = set()
for number in range(30):
    step()
    states.add((gc.isenabled(), gc.get_threshold()))
print(states, gc.garbage)
corpus_state.report(model=model, recording_over=True)
