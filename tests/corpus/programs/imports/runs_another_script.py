# Writes a script that trains, and runs it by runpy with arguments of its own.
import runpy
import sys
from pathlib import Path

import corpus_state

Path("inner.py").write_text(
    """
import sys
import torch

def main(count):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
    print(__name__, sys.argv, loss.item())

if __name__ == "__main__":
    main(int(sys.argv[1]))
"""
)
before = sys.argv
sys.argv = ["inner.py", "30"]
found = runpy.run_path("inner.py", run_name="__main__")
sys.argv = before
print(sorted(name for name in found if not name.startswith("__")))
corpus_state.report(recording_over=True)
