# Parameters of a class of their own, which counts what is done with them.
from collections import Counter

import corpus_state
import torch


class Watched(torch.nn.Parameter):
    names = Counter()

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Watched.names[function.__name__] += 1
        return super().__torch_function__(function, types, args, kwargs or {})


corpus_state.seed()
model = torch.nn.Linear(8, 4)
model.weight = Watched(model.weight.detach())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(sorted(Watched.names.items()))
corpus_state.report(model=model, recording_over=True)
