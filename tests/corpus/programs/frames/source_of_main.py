# Looks at its own source, names and command line.
# arguments: --rate 3
import inspect
import sys

import corpus_state
import torch

import __main__

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


print(inspect.getsource(step))
print(__main__.__spec__, __main__.__doc__, __name__, __file__ == sys.argv[0], sys.argv[1:])
print(__main__.__builtins__ is __builtins__, __main__.__dict__ is globals(), sys.orig_argv[-2:])
print(inspect.getmodule(step) is __main__, len(inspect.stack()))
for _ in range(30):
    step()
print(sorted(name for name in vars(__main__) if not name.startswith("__")))
corpus_state.report(model=model, recording_over=True)
