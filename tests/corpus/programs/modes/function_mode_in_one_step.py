# A mode that is there in a single step only: in the first, in the timing pass, at last.
import corpus_state
import torch
from torch.overrides import TorchFunctionMode


class Names(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(function.__name__)
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
    if number in (0, 2, 3, 4, 5, 13, 14, 15, 25):
        with Names() as mode:
            step()
        print(number, mode.names)
    else:
        step()
corpus_state.report(model=model, recording_over=True)
