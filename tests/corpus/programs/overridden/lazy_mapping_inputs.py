# A mapping as input whose values are made when they are read.
from collections.abc import Mapping

import corpus_state
import torch


class Lazy(Mapping):
    def __init__(self):
        self.reads = []

    def __getitem__(self, key):
        self.reads.append(key)
        return torch.randn(8, 8)

    def __iter__(self):
        self.reads.append("iter")
        return iter(("x", "y"))

    def __len__(self):
        self.reads.append("len")
        return 2


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 4)

    def forward(self, batch, *, also=None):
        return {"out": self.inner(batch["x"])}


corpus_state.seed()
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
reads = []
for _ in range(30):
    batch, also = Lazy(), Lazy()
    model(batch, also=also)["out"].square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    reads.append(tuple(batch.reads + also.reads))
print(set(reads))
corpus_state.report(model=model, recording_over=True)
