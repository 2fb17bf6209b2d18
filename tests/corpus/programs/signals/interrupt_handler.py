# The program's own handler of SIGINT notes it and stops after the step.
import os
import signal

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


asked = []
signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
for number in range(40):
    step()
    if number in (1, 4, 14, 30):
        os.kill(os.getpid(), signal.SIGINT)
    if len(asked) == 3:
        print("stopping after step", number)
        break
corpus_state.report(model=model, recording_over=True)
