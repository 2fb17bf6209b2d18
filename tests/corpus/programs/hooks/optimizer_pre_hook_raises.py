# A global hook before the step raises; the step is lost and the program goes on.
import corpus_state
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


seen = 0


def fragile(*_):
    global seen
    seen += 1
    if seen % 5 == 1:
        raise KeyError(seen)


register_optimizer_step_pre_hook(fragile)
lost = 0
for _ in range(40):
    try:
        step()
    except KeyError:
        lost += 1
print(lost)
corpus_state.report(model=model, recording_over=True)
