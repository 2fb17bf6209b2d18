# Inputs and outputs are dataclasses with properties that compute, count and raise.
from dataclasses import dataclass

import corpus_state
import torch


@dataclass
class Batch:
    raw: torch.Tensor
    reads: int = 0

    @property
    def scaled(self):
        self.reads += 1
        return self.raw / self.raw.abs().max()

    @property
    def missing(self):
        self.reads += 100
        raise AttributeError("never")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 4)

    def forward(self, batch):
        return Batch(self.inner(batch.scaled))


corpus_state.seed()
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
reads = []
for _ in range(30):
    optimizer.zero_grad()
    batch = Batch(torch.randn(8, 8))
    out = model(batch)
    out.raw.square().mean().backward()
    optimizer.step()
    reads.append((batch.reads, out.reads))
print(set(reads))
corpus_state.report(model=model, recording_over=True)
