# Function and dispatch modes nested in each other, and one entered twice.
import corpus_state
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

trail = []


class Function(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        trail.append("f")
        return function(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        trail.append("d")
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


outer = Function()
for number in range(30):
    with outer, Dispatch(), outer:
        step()
print(len(trail), "".join(trail[:80]))
corpus_state.report(model=model, recording_over=True)
