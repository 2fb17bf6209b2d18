"""A Set Transformer on sets of different sizes, padded and masked."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class MAB(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x, y, mask=None):
        def split(data):
            return torch.cat(data.split(data.shape[-1] // self.heads, -1), 0)

        q, k, v = split(self.q(x)), split(self.k(y)), split(self.v(y))
        scores = q.bmm(k.transpose(1, 2)) / x.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask.repeat(self.heads, 1).unsqueeze(1), -1e9)
        out = torch.cat((q + scores.softmax(-1).bmm(v)).split(x.shape[0], 0), -1)
        out = self.one(out)
        return self.two(out + torch.relu(self.o(out)))


class ISAB(nn.Module):
    def __init__(self, width, heads, points):
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, points, width) * 0.1)
        self.inner, self.outer = MAB(width, heads), MAB(width, heads)

    def forward(self, data, mask):
        return self.outer(data, self.inner(self.points.expand(data.shape[0], -1, -1), data, mask))


class SetNet(nn.Module):
    def __init__(self, width=144):
        super().__init__()
        self.embed = nn.Linear(6, width)
        self.blocks = nn.ModuleList([ISAB(width, 4, 32) for _ in range(2)])
        self.seed, self.pool, self.head = nn.Parameter(torch.randn(1, 1, width)), MAB(width, 4), nn.Linear(width, 1)

    def forward(self, data, mask):
        hidden = self.embed(data)
        for block in self.blocks:
            hidden = block(hidden, mask)
        return self.head(self.pool(self.seed.expand(data.shape[0], -1, -1), hidden, mask)).view(-1)


torch.manual_seed(3)
model = SetNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(9):
    sizes = torch.randint(30, 400, (16,))
    data = torch.zeros(16, int(sizes.max()), 6)
    for row, size in enumerate(sizes):
        data[row, :size] = torch.randn(int(size), 6)
    mask = torch.arange(data.shape[1]) < sizes.unsqueeze(1)
    data, mask = data.to(device), mask.to(device)
    wanted = (data.amax((1, 2))).detach()
    loss = nn.functional.smooth_l1_loss(model(data, mask), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
