# A mode that changes results: each ReLU leaks a little.
import corpus_state
import torch
from torch.overrides import TorchFunctionMode


class Leaky(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.relu:
            return torch.nn.functional.leaky_relu(args[0], 0.1)
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


with Leaky():
    for _ in range(30):
        step()
corpus_state.report(model=model, recording_over=True)
