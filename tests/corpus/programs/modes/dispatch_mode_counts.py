# A dispatch mode counts operators, one step at a time.
import corpus_state
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
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


for number in range(30):
    with Counting() as mode:
        step()
    print(number, len(mode.names))
print(mode.names)
corpus_state.report(model=model, recording_over=True)
