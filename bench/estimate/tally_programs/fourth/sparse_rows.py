"""Skip-gram with negative samples: sparse gradients of large tables with SparseAdam, and a dense part with Adam."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SkipGram(nn.Module):
    def __init__(self, words=30000, width=96):
        super().__init__()
        self.inside, self.outside = nn.Embedding(words, width, sparse=True), nn.Embedding(words, width, sparse=True)
        self.bag = nn.EmbeddingBag(5000, width, mode="sum", sparse=True)
        self.mix = nn.Linear(2 * width, width)

    def forward(self, centers, pieces, offsets, contexts, negatives):
        center = self.mix(torch.cat([self.inside(centers), self.bag(pieces, offsets)], 1))
        good = F.logsigmoid((center.unsqueeze(1) * self.outside(contexts)).sum(-1)).mean()
        bad = F.logsigmoid(-(center.unsqueeze(1) * self.outside(negatives)).sum(-1)).mean()
        return -(good + bad)


torch.manual_seed(0)
model = SkipGram().to(device)
tables = torch.optim.SparseAdam(
    [*model.inside.parameters(), *model.outside.parameters(), *model.bag.parameters()], lr=1e-3
)
dense = torch.optim.Adam(model.mix.parameters(), lr=1e-3)
chances = torch.arange(1, 30001).float().pow(-0.75)
for _ in range(6):
    centers = torch.multinomial(chances, 512, replacement=True)
    contexts = torch.multinomial(chances, 512 * 4, replacement=True).view(512, 4)
    negatives = torch.multinomial(chances, 512 * 8, replacement=True).view(512, 8)
    counts = torch.randint(1, 6, (512,))
    pieces = torch.randint(5000, (int(counts.sum()),))
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)[:-1]])
    loss = model(*(part.to(device) for part in (centers, pieces, offsets, contexts, negatives)))
    tables.zero_grad()
    dense.zero_grad()
    loss.backward()
    tables.step()
    dense.step()
