# A mode that raises in the middle of a forward, in several stages.
import traceback

import corpus_state
import torch
from torch.overrides import TorchFunctionMode


class Bomb(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.relu:
            raise RuntimeError("no relu")
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
    if number in (1, 4, 8, 14, 20):
        try:
            with Bomb():
                step()
        except RuntimeError:
            traceback.print_exc()
    step()
corpus_state.report(model=model, recording_over=True)
