# The program wraps nn.Module.__call__ inside the window and never takes it off.
import corpus_state
import torch

calls = []

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


step()
inner = torch.nn.Module.__call__


def __call__(self, *args, **kwargs):
    calls.append(type(self).__name__)
    return inner(self, *args, **kwargs)


torch.nn.Module.__call__ = __call__
for _ in range(29):
    step()
print(len(calls), calls[:3])
corpus_state.report(model=model)
