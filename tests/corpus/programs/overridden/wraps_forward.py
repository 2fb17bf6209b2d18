# forward is wrapped with functools.wraps, on the class and on an instance, and looked at with inspect.
import functools
import inspect

import corpus_state
import torch

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


def logged(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        calls.append(len(args))
        return function(*args, **kwargs)

    return inner


torch.nn.ReLU.forward = logged(torch.nn.ReLU.forward)
model[0].forward = logged(model[0].forward)
losses = [step() for _ in range(24)]
print(len(calls), inspect.signature(model[0].forward), inspect.signature(torch.nn.ReLU.forward))
print(inspect.getsource(torch.nn.Linear.forward).count("\n"), inspect.signature(torch.nn.Module.__call__))
print(inspect.getsource(torch.nn.Module._call_impl).count("gpuledger"), inspect.signature(torch.Tensor.backward))
print(
    len(inspect.getsource(torch.optim.Optimizer.profile_hook_step)),
    inspect.getsourcelines(torch.autograd.backward)[1] > 0,
)
torch.nn.ReLU.forward = torch.nn.ReLU.forward.__wrapped__
corpus_state.report(model=model, recording_over=True)
