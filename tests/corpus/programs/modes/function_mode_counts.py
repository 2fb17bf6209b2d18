# Counts every torch function by a mode of its own.
import corpus_state
import torch
from torch.overrides import TorchFunctionMode


class Counting(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        Counting.calls += 1
        return function(*args, **(kwargs or {}))


corpus_state.seed()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    with Counting():
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
print(Counting.calls)
corpus_state.report(model=model, recording_over=True)
