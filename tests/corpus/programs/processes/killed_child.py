# A forked child that trains is killed by its parent.
import os
import signal
import time

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


for number in range(20):
    step()
    if number in (1, 4, 14):
        child = os.fork()
        if child == 0:
            while True:
                step()
        time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
corpus_state.report(model=model)
