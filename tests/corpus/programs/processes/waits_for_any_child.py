# Waits for any child until there is none: the program has two, and nobody else starts one in its process.
import os

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


for _ in range(4):
    step()
children = []
for status in (3, 5):
    child = os.fork()
    if not child:
        os._exit(status)
    children.append(child)
for _ in range(26):
    step()
found = []
while True:
    try:
        child, status = os.wait()
    except ChildProcessError:
        break
    found.append((children.index(child), os.waitstatus_to_exitcode(status)))
print(sorted(found))
corpus_state.report(model=model, recording_over=True)
