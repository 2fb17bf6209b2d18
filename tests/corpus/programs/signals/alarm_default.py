# An alarm that nobody handles ends the program.
# status: -14
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


for _ in range(5):
    step()
print("waiting", flush=True)
signal.setitimer(signal.ITIMER_REAL, 0.05)
time.sleep(60)
