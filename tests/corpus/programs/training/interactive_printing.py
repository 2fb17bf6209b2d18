# Progress on one line, with carriage returns and flushes, as progress bars have it.
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
    sys.stderr.write(f"\r[{'#' * number:30}] {step():.4f}")
    sys.stderr.flush()
sys.stderr.write("\n")
corpus_state.report(model=model, recording_over=True)
