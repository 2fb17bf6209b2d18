# Children that ignore the environment: -I, -E, -S and an empty one.
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


step()
source = "import sys; print(sorted(n for n in sys.modules if 'ledger' in n), len(sys.path) > 1)"
for flags in ("-I", "-E", "-S"):
    print(subprocess.run([sys.executable, flags, "-c", source], capture_output=True))
print(subprocess.run([sys.executable, "-c", source], env={}, capture_output=True))
corpus_state.report()
