# A forward raises the recursion limit for itself and lowers it again, at depth.
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


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, inputs, depth=60):
        if depth == 0:
            return self.inner(inputs)
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + 10)
        try:
            return self(inputs, depth - 1)
        finally:
            sys.setrecursionlimit(limit)


model.append(Deep())
optimizer.add_param_group({"params": model[3].parameters()})
losses = [step() for _ in range(24)]
print(f"{losses[-1]:.6f}", sys.getrecursionlimit())
corpus_state.report(model=model, recording_over=True)
