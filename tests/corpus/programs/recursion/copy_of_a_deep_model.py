# Deep models are copied, pickled and printed to the recursion limit.
import bisect
import copy
import pickle

import corpus_state
import torch


def nest(depth):
    model = torch.nn.Identity()
    for _ in range(depth):
        model = torch.nn.Sequential(model)
    return model


def fails(job, depth):
    try:
        job(nest(depth))
    except RecursionError:
        return True
    return False


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


deepest = {}
for number in range(24):
    step()
    if number in (0, 2, 4, 14):
        for name, job in (("copy", copy.deepcopy), ("pickle", pickle.dumps), ("print", repr)):
            found = bisect.bisect_left(range(400), True, lo=1, key=lambda depth: fails(job, depth))
            deepest[f"depth_{name}_{number}"] = found
corpus_state.report(model=model, recording_over=True, **deepest)
