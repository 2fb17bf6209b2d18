"""A timer's signal handler raises in the middle of steps, again and again; every deadline is met."""
# also: --steps 1:100000

import signal
import time

import torch

torch.manual_seed(64)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()
optimizer = torch.optim.Adam(model.parameters())


class Deadline(Exception):
    pass


def ring(number: int, frame: object) -> None:
    raise Deadline


def step() -> None:
    optimizer.zero_grad()
    model(torch.ones(32, 64, device="cuda")).square().mean().backward()
    optimizer.step()


step()
signal.signal(signal.SIGALRM, ring)
met = 0
for _ in range(12):
    begun = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        while time.monotonic() - begun < 5:
            step()
    except Deadline:
        met += 1
step()
print("deadlines met:", met)
