# The program replaces itself by exec with another one in the middle of a step.
# status: 4
import os
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


for _ in range(2):
    step()


def become_another(module, gradients, outputs):
    sys.stdout.flush()
    corpus_state.report("before exec", model=model)
    os.execv(sys.executable, [sys.executable, "-c", "import sys; print('another', len(sys.argv)); sys.exit(4)", "x"])


model.register_full_backward_hook(become_another)
step()
