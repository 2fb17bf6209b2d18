# Every reading of a module's attributes is counted, by name.
from collections import Counter

import corpus_state
import torch


class Spied(torch.nn.Linear):
    names = Counter()

    def __getattribute__(self, name):
        Spied.names[name] += 1
        return super().__getattribute__(name)


corpus_state.seed()
model = Spied(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(sorted(Spied.names.items()))
corpus_state.report(model=model, recording_over=True)
