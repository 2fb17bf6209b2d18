# Iterable data sets, alone and in workers that split the work.
import corpus_state
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, 80, stride):
            yield torch.full((8,), number / 80)


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for workers in (0, 2, 0):
    for batch in DataLoader(Stream(), batch_size=4, num_workers=workers):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
corpus_state.report(model=model, recording_over=True)
