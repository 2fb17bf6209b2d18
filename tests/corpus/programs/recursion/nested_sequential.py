# Sequentials nested in each other are called, as deep as they go.
import bisect

import corpus_state
import torch


def nest(depth):
    model = torch.nn.Identity()
    for _ in range(depth):
        model = torch.nn.Sequential(model)
    return model


def fails(depth):
    try:
        nest(depth)(torch.ones(1, 4))
    except RecursionError:
        return True
    return False


corpus_state.seed()
deepest = {}
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
for number in range(24):
    if number in (0, 1, 2, 3, 4, 5, 13, 14, 15, 20):
        deepest[f"depth_{number}"] = bisect.bisect_left(range(500), True, lo=1, key=fails)
    optimizer.step()
corpus_state.report(recording_over=True, **deepest)
