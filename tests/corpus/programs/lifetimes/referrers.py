# What refers to the model and to its weights, by type, after all is over.
import gc
from collections import Counter

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


for _ in range(30):
    step()
gc.collect()
for one in (model, model[0], model[0].weight, optimizer):
    print(sorted(Counter(type(holder).__name__ for holder in gc.get_referrers(one)).items()))
corpus_state.report(model=model, recording_over=True)
