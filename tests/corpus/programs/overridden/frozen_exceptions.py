# Exceptions that refuse attributes: frozen dataclasses, and one with its own __setattr__.
import dataclasses

import corpus_state
import torch


@dataclasses.dataclass(frozen=True)
class Skip(Exception):
    number: int


class Sealed(Exception):
    def __setattr__(self, name, value):
        raise TypeError(f"{name} cannot be set")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x, failure):
        hidden = self.inner(x)
        if failure is not None:
            raise failure
        return hidden


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        raise Skip(-1)


corpus_state.seed()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
caught = []
for number in range(24):
    for failure in (None, Skip(number), Sealed(number)):
        optimizer.zero_grad()
        try:
            model(torch.randn(4, 8), failure).square().mean().backward()
            optimizer.step()
        except (Skip, Sealed) as error:
            caught.append((type(error).__name__, error.args, repr(error.__context__)))
    try:
        Refuses.apply(model(torch.randn(4, 8), None)).sum().backward()
    except Skip as error:
        caught.append(("backward", error.number))
print(caught)
corpus_state.report(model=model)
