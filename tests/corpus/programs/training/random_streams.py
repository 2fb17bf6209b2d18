# Every random stream is drawn from in every step, and restored now and then.
import random

import corpus_state
import numpy
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


drawn = []
for number in range(30):
    with torch.random.fork_rng():
        torch.rand(3)
    step()
    drawn.append((random.random(), numpy.random.rand(), torch.rand(1).item()))
    if number == 4:
        state = torch.get_rng_state(), random.getstate()
    if number == 20:
        torch.set_rng_state(state[0])
        random.setstate(state[1])
print(drawn[0], drawn[2], drawn[15], drawn[-1])
corpus_state.report(model=model, recording_over=True)
