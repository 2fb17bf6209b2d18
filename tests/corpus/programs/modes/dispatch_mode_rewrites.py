# A dispatch mode replaces an operator's result.
import corpus_state
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class HalfNoise(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        return out * 0.5 if function is torch.ops.aten.randn.default else out


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


with HalfNoise():
    for _ in range(30):
        step()
corpus_state.report(model=model, recording_over=True)
