# Learning-rate schedulers of several kinds beside the steps.
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


warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [5])
rates = []
for _ in range(30):
    step()
    both.step()
    rates.append(round(optimizer.param_groups[0]["lr"], 6))
print(rates)
corpus_state.report(model=model, recording_over=True)
