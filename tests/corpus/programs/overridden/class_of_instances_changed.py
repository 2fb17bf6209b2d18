"""The class of modules and of the optimizer changes while they are in use."""

import corpus_state
import torch

torch.manual_seed(12)


class Quiet(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * 0.5


class Slow(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 0.9
        return super().step(closure)


model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(14):
    if step == 1:
        model[0].__class__ = Quiet
    if step == 2:
        optimizer.__class__ = Slow
    if step == 6:
        model.__class__ = type("Mine", (torch.nn.Sequential,), {"forward": lambda self, x: self[2](self[0](x))})
    if step == 9:
        model[0].__class__ = torch.nn.Linear
    loss = model(torch.randn(3, 4)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, f"{loss.item():.6f}", type(model).__name__, type(optimizer).__name__)
corpus_state.report(model=model)
