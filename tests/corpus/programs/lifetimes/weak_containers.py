# Weak dictionaries and sets of modules, parameters and optimizers.
import weakref

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


named = weakref.WeakKeyDictionary({module: name for name, module in model.named_modules()})
steps = weakref.WeakSet()
sizes = []
for number in range(30):
    step()
    other = torch.optim.SGD(model.parameters(), lr=0.01)
    named[torch.nn.Linear(2, 2)] = "lost"
    steps.add(other)
    other.step()
    sizes.append((len(named), len(steps)))
del other
print(sizes[:3], sizes[-3:], len(steps))
corpus_state.report(model=model, recording_over=True)
