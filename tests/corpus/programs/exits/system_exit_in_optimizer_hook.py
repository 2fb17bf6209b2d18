# SystemExit in a hook of the optimizer, in the window, while atexit functions wait.
# status: 8
import atexit
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


atexit.register(lambda: corpus_state.report(model=model))
optimizer.register_step_post_hook(lambda *_: sys.exit(8) if count == 1 else None)
for count in range(30):
    print(f"{step():.6f}")
