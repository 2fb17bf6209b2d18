# gc.freeze and unfreeze in the middle of training.
import gc

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
    if number % 7 == 2:
        gc.freeze()
    if number % 7 == 5:
        gc.unfreeze()
gc.unfreeze()
print(gc.get_freeze_count())
corpus_state.report(model=model, recording_over=True)
