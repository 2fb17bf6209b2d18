# A function mode of one thread is not there in another.
import threading

import corpus_state
import torch
from torch.overrides import TorchFunctionMode


class Counting(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        Counting.calls += 1
        return function(*args, **(kwargs or {}))


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


before = []
for number in range(30):
    with Counting():
        step()
        calls = Counting.calls
        other = threading.Thread(target=lambda: model(torch.ones(1, 8)))
        other.start()
        other.join()
        before.append(Counting.calls - calls)
print(before, Counting.calls)
corpus_state.report(model=model, recording_over=True)
