# The reader of a pipe has gone: the default action of SIGPIPE ends the program.
# status: -13
import os
import signal

import corpus_state
import torch

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


reader, writer = os.pipe()
os.close(reader)
for _ in range(20):
    step()
print("writing", flush=True)
os.write(writer, b"nobody reads this")
