# A worker's exception reaches the training loop.
import gc

import corpus_state
import torch
from torch.utils.data import DataLoader, Dataset


class Broken(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            raise KeyError("row 5")
        return torch.ones(8)


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(24):
    step()
    if number == 4:
        try:
            for batch in DataLoader(Broken(), batch_size=2, num_workers=1):
                model(batch)
        except KeyError as error:
            print(number, "".join(str(error)).count("Original Traceback"), "ledger" in str(error))
        gc.collect()
corpus_state.report(model=model, recording_over=True)
