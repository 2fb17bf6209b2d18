"""A forward hook of the third step calls sys.exit; finally blocks and atexit still run."""
# status: 3

import atexit
import sys

import corpus_state
import torch

torch.manual_seed(62)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
calls = 0


def leave(*_: object) -> None:
    global calls
    calls += 1
    if calls == 3:
        sys.exit(3)


model[1].register_forward_hook(leave)
atexit.register(lambda: corpus_state.report(model=model, calls=calls))
try:
    for _ in range(30):
        model(torch.randn(32, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
finally:
    print("finally", calls)
