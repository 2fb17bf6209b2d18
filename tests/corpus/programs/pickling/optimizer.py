# The optimizer itself is pickled and copied, with its hooks.
import copy
import pickle

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


for number in range(30):
    step()
    if number in (0, 2, 4, 8, 14, 20):
        again = pickle.loads(pickle.dumps(optimizer))
        deep = copy.deepcopy(optimizer)
        print(number, sorted(vars(again)), sorted(vars(deep)), len(pickle.dumps(optimizer)))
corpus_state.report(model=model, recording_over=True)
