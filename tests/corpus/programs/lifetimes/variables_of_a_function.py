# Variables of the function that trains are freed where the function deletes them or ends.
import weakref

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


class Batch:
    def __init__(self):
        self.values = torch.randn(8, 8)


def train():
    freed = []
    for number in range(30):
        batch = Batch()
        reference = weakref.ref(batch)
        step()
        del batch
        freed.append(reference() is None)
    kept = Batch()
    step()
    return freed, weakref.ref(kept)


freed, reference = train()
print(all(freed), len(freed), reference() is None)
corpus_state.report(model=model, recording_over=True)
