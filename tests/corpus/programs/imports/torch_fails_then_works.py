# The first import of torch fails and is caught; the second finds the real one.
import sys
import traceback
from pathlib import Path

import corpus_state

place = Path("torch.py")
place.write_text("import no_such_module\n")
try:
    import torch
except ImportError:
    traceback.print_exc()
place.unlink()
sys.path_importer_cache.clear()
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


for _ in range(30):
    step()
corpus_state.report(model=model, recording_over=True)
