# SystemExit in a hook of backward, in the fifteenth step.
# status: 9
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


model[0].weight.register_hook(lambda grad: sys.exit(9) if count == 4 else None)
for count in range(30):
    print(f"{step():.6f}")
