"""Two workers load batches, a thread pins them, and they are copied without blocking."""

import time

import corpus_state
import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self) -> int:
        return 40 * 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(256, generator=torch.Generator().manual_seed(index))


torch.manual_seed(56)
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(Numbers(), batch_size=32, shuffle=True, num_workers=2, pin_memory=True, persistent_workers=True)
pinned = 0
for _ in range(4):
    for batch in loader:
        pinned += batch.is_pinned()
        model(batch.to("cuda", non_blocking=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        time.sleep(0.02)
del loader
print(pinned)
corpus_state.report(model=model)
