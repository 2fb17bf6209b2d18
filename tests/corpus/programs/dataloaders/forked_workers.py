# Two forked workers with random augmentation: their random streams are the same.
import random

import corpus_state
import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(8) + random.random()


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
total = 0.0
for _ in range(4):
    for batch in DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        total += batch.sum().item()
print(f"{total:.5f}")
corpus_state.report(model=model, recording_over=True)
