# torch.overrides: a duck-typed class with __torch_function__, and what torch says of it.
import corpus_state
import torch
from torch import overrides

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


calls = []


class Boxed:
    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        calls.append(overrides.resolve_name(function))
        return function(*(one.value if isinstance(one, Boxed) else one for one in args), **(kwargs or {}))


for number in range(24):
    optimizer.zero_grad()
    loss = torch.mean(Boxed(model(torch.randn(8, 8)).square()))
    loss.backward()
    optimizer.step()
print(len(calls), calls[:1], overrides.is_tensor_like(Boxed(1)), overrides.has_torch_function((Boxed(1),)))
print(len(overrides.get_overridable_functions()) > 5)
corpus_state.report(model=model, recording_over=True)
