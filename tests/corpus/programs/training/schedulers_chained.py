# Chained, sequential and plateau schedules, one with a lambda, wrapped steps counted.
import corpus_state
import torch
from torch.optim import lr_scheduler

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


sequence = lr_scheduler.SequentialLR(
    optimizer,
    [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.ExponentialLR(optimizer, 0.9)],
    milestones=[4],
)
plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, threshold=0.5)
rates = []
for number in range(24):
    loss = step()
    sequence.step()
    plateau.step(loss)
    rates.append(round(optimizer.param_groups[0]["lr"], 8))
print(rates[::6], optimizer._opt_called, type(optimizer.step).__name__, optimizer.step.__name__)
corpus_state.report(model=model, recording_over=True)
