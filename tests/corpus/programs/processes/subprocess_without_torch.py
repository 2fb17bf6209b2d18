# Children without torch: their output, status and environment.
import os
import subprocess
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


command = [sys.executable, "-c", "import sys; print(sys.argv); sys.exit(3)", "x"]
for number in range(24):
    step()
    if number in (0, 2, 4, 8, 14, 20):
        done = subprocess.run(command, capture_output=True)
        print(number, done.returncode, done.stdout, done.stderr)
        os.system("echo from the shell")
corpus_state.report(model=model, recording_over=True)
