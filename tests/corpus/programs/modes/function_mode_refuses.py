# A mode that knows a handful of functions and refuses all others.
import corpus_state
import torch
from torch.overrides import TorchFunctionMode

ALLOWED = {"linear", "relu", "square", "mean", "backward", "randn", "__get__", "sum", "zero_", "__set__", "item"}


class Strict(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ not in ALLOWED:
            raise TypeError(f"{function.__name__} is not allowed here")
        return function(*args, **(kwargs or {}))


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(30):
    with Strict():
        model(torch.randn(8, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
corpus_state.report(model=model, recording_over=True)
