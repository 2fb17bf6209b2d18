# Workers that live on between epochs, with a function that is called in each.
import corpus_state
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Told(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        info = get_worker_info()
        return torch.full((8,), float(index)), info.id, info.seed % 1000 if info.id < 0 else info.num_workers


def prepare(number):
    torch.set_num_threads(1)


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Told(), 8, num_workers=2, persistent_workers=True, worker_init_fn=prepare, prefetch_factor=1)
seen = set()
for _ in range(8):
    for batch, worker, number in loader:
        optimizer.zero_grad()
        model(batch / 32).square().mean().backward()
        optimizer.step()
        seen.update(zip(worker.tolist(), number.tolist()))
print(sorted(seen))
del loader
corpus_state.report(model=model, recording_over=True)
