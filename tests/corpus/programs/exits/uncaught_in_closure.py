# An exception inside the closure of LBFGS.
# status: 1
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
data = torch.randn(8, 8)
calls = []


def closure():
    calls.append(1)
    if len(calls) == 7:
        raise ValueError("in the closure")
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    return loss


for _ in range(30):
    optimizer.step(closure)
