# The program replaces builtins: print, len, open, isinstance and __import__.
import builtins

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


calls = {"open": 0, "import": 0}
real_open, real_import = builtins.open, builtins.__import__


def open_counted(file, *args, **kwargs):
    calls["open"] += 1
    return real_open(file, *args, **kwargs)


def import_counted(name, *args, **kwargs):
    calls["import"] += 1 if name.startswith("no_such") else 0
    return real_import(name, *args, **kwargs)


step()
builtins.open, builtins.__import__ = open_counted, import_counted
for _ in range(29):
    step()
builtins.open, builtins.__import__ = real_open, real_import
print(calls)
corpus_state.report(model=model, recording_over=True)
