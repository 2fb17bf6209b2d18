# Deadlines: an alarm's handler raises wherever the training is; no deadline may be lost.
# also: --steps 1:100000
import signal
import time

import corpus_state
import torch


class Late(Exception):
    pass


def raise_late(*_):
    raise Late


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(20)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
spare = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(1000))
optimizer.add_param_group({"params": spare.parameters()})


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


with torch.autograd.profiler.record_function("what torch imports at first use"):
    signal.signal(signal.SIGALRM, raise_late)
lost = 0
for number in range(12):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.004 * number)
        ends = time.monotonic() + 2
        while time.monotonic() < ends:
            step()
        lost += 1
    except Late:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        torch.set_grad_enabled(True)
print("deadlines lost:", lost)
corpus_state.report()
