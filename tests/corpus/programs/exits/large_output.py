# Much output to both streams, with and without buffers.
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


for number in range(30):
    sys.stdout.write("x" * 50_000 + "\n")
    sys.stderr.write("y" * 50_000 + "\n")
    sys.stdout.buffer.write(bytes(range(256)))
    step()
corpus_state.report(model=model, recording_over=True)
