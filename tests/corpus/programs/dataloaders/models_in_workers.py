# Workers run a model of their own to prepare the data.
import corpus_state
import torch
from torch.utils.data import DataLoader, Dataset

corpus_state.seed()
encoder = torch.nn.Linear(4, 8)


class Encoded(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        with torch.no_grad():
            return encoder(torch.full((4,), index / 64))


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(3):
    for batch in DataLoader(Encoded(), batch_size=8, num_workers=2):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
corpus_state.report(model=model, recording_over=True)
