# Workers are forked for the first time in the timing pass.
import corpus_state
import torch
from torch.utils.data import DataLoader, TensorDataset

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(3):
    step()
for _ in range(2):
    for (batch,) in DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8, num_workers=1):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
for _ in range(20):
    step()
corpus_state.report(model=model, recording_over=True)
