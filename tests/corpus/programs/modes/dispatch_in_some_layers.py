# A layer that opens a TorchDispatchMode of its own around its product, in forward and backward.
import corpus_state
import torch
from torch.utils._python_dispatch import TorchDispatchMode

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


seen = []


class Counts(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        seen.append(function.__name__)
        return function(*args, **(kwargs or {}))


class Counted(torch.nn.Linear):
    def forward(self, inputs):
        with Counts():
            return super().forward(inputs)


model.append(Counted(4, 4))
optimizer.add_param_group({"params": model[3].parameters()})
for _ in range(24):
    step()
print(len(seen), seen[:4])
corpus_state.report(model=model, recording_over=True)
