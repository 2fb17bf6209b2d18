# The program wraps nn.Module.__call__ itself: before, inside and after the window, and takes it off again.
import corpus_state
import torch

calls = []
original = torch.nn.Module.__call__


def wrap(inner):
    def __call__(self, *args, **kwargs):
        calls.append(type(self).__name__)
        return inner(self, *args, **kwargs)

    return __call__


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
    if number in (1, 4, 14):
        before = torch.nn.Module.__call__
        torch.nn.Module.__call__ = wrap(before)
        step()
        torch.nn.Module.__call__ = before
    step()
print(len(calls), calls[:3])
corpus_state.report(model=model, recording_over=True)
