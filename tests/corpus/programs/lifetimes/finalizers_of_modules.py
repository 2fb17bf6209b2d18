# Modules with __del__ and weakref.finalize die in steps, some in cycles, and report when.
import gc
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


gc.disable()  # when it runs by itself depends on every object that is made
log = []


class Dies(torch.nn.Linear):
    def __del__(self):
        log.append(("del", self.in_features))


def build(width):
    module = Dies(8, width)
    weakref.finalize(module, log.append, ("finalized", width))
    module.myself = [module] if width % 2 else None
    return module


for number in range(24):
    passing = build(number)
    passing(torch.ones(1, 8)).sum().backward()
    step()
    del passing
    log.append(("step", number))
    if number % 6 == 5:
        log.append(("collected", gc.collect() > 0))
print(log)
corpus_state.report(model=model)
