# Weights are pruned in the middle of training, and the pruning made permanent.
import corpus_state
import torch
from torch.nn.utils import prune

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(30):
    if number in (1, 9):
        prune.l1_unstructured(model[0], "weight", amount=0.3)
    if number == 4:
        prune.remove(model[0], "weight")
    step()
print(int((model[0].weight == 0).sum()))
corpus_state.report(model=model, recording_over=True)
