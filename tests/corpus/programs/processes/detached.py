# The program leaves a detached process behind, which writes a file after it.
import os
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


step()
child = os.fork()
if child == 0:
    if os.fork() == 0:
        os.setsid()
        open("detached", "w").write("here")
        os._exit(0)
    os._exit(0)
os.waitpid(child, 0)
while not os.path.exists("detached"):
    time.sleep(0.01)
for _ in range(30):
    step()
corpus_state.report(model=model, recording_over=True)
