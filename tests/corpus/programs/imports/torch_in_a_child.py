# The program itself has no torch; a child of it has, and trains.
import subprocess
import sys

import corpus_state

source = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
print(model.weight.sum().item())
"""
done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
print(done.returncode, done.stdout, done.stderr)
corpus_state.report()
