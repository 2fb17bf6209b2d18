# A checkpointed function that raises when it is computed again, and selective checkpointing.
import traceback

import corpus_state
import torch
from torch.utils.checkpoint import checkpoint


class Fragile(torch.nn.Module):
    calls = 0

    def forward(self, x):
        Fragile.calls += 1
        if fails and Fragile.calls % 2 == 0:
            raise ValueError("computed again")
        return x.sin()


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
fragile = Fragile()
for number in range(30):
    fails = number in (1, 4, 9, 14, 20)
    Fragile.calls = 0
    optimizer.zero_grad()
    out = checkpoint(fragile, model(torch.randn(8, 8)), use_reentrant=False)
    try:
        out.sum().backward()
    except ValueError:
        traceback.print_exc()
    optimizer.step()
corpus_state.report(model=model, recording_over=True)
