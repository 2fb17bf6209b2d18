# A loader without workers, with a sampler, a collation and a generator of its own.
import corpus_state
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = TensorDataset(torch.randn(64, 8))
sampler = RandomSampler(data, generator=torch.Generator().manual_seed(3))


def collate(rows):
    return (torch.stack([row[0] for row in rows]),)


for _ in range(4):
    for (batch,) in DataLoader(data, batch_size=8, sampler=sampler, collate_fn=collate):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
corpus_state.report(model=model, recording_over=True)
