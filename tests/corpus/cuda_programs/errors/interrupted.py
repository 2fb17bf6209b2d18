"""SIGINT arrives in the second step, SIGTERM in the eighth; handlers of the program's own save and end it."""
# status: 0
# allowed: measuring

import os
import signal
import sys
from pathlib import Path

import corpus_state
import torch

torch.manual_seed(65)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def save(number: int, frame: object) -> None:
    torch.save({name: value.cpu() for name, value in model.state_dict().items()}, "saved.pt")
    print("saved", Path("saved.pt").stat().st_size)
    corpus_state.report(model=model)
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
for step in range(30):
    try:
        model(torch.randn(32, 64, device="cuda")).square().mean().backward()
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        if step == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        optimizer.step()
    except KeyboardInterrupt:
        print("interrupted in step", step)
    optimizer.zero_grad()
