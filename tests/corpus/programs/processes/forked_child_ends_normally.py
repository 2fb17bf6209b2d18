# A forked child runs to its own end, with functions at exit.
import atexit
import os
import sys

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


atexit.register(lambda: print("at exit in", where, flush=True))
where = "the parent"
for number in range(20):
    step()
    if number in (1, 4, 14):
        child = os.fork()
        if child == 0:
            where = f"child {number}"
            step()
            sys.exit(4)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
corpus_state.report(model=model)
