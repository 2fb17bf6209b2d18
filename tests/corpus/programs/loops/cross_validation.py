# Cross-validation: a fresh model, optimizer and schedule for each fold, and the old ones are freed.
import gc
import weakref

import corpus_state
import torch
from torch import nn

corpus_state.seed()
inputs = torch.randn(60, 5)
errors, alive = [], []
for fold in range(5):
    held = torch.arange(60) % 5 == fold
    model = nn.Sequential(nn.Linear(5, 12), nn.Dropout(0.2), nn.Linear(12, 1))
    alive.append(weakref.ref(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4)
    for _ in range(8):
        optimizer.zero_grad()
        (model(inputs[~held])[:, 0] - inputs[~held].sum(1)).square().mean().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        errors.append(round((model.eval()(inputs[held])[:, 0] - inputs[held].sum(1)).square().mean().item(), 5))
    del model, optimizer, schedule
    gc.collect()
print(errors, [one() is None for one in alive])
corpus_state.report(errors=errors)
