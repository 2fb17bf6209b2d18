"""A state-space model whose steps depend on the data, scanned in chunks, with gradient accumulation and clipping."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Scan(nn.Module):
    def __init__(self, width, states=8, chunk=16):
        super().__init__()
        self.enter, self.leave = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.near = nn.Conv1d(2 * width, 2 * width, 4, padding=3, groups=2 * width)
        self.choose = nn.Linear(2 * width, 2 * states + 1, bias=False)
        self.rate = nn.Parameter(torch.zeros(2 * width))
        self.decay = nn.Parameter(torch.log(torch.arange(1.0, states + 1).repeat(2 * width, 1)))
        self.skip, self.states, self.chunk = nn.Parameter(torch.ones(2 * width)), states, chunk

    def forward(self, x):
        inner, gate = self.enter(x).chunk(2, -1)
        inner = F.silu(self.near(inner.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, enter, leave = self.choose(inner).split([1, self.states, self.states], -1)
        step = F.softplus(step + self.rate)
        state, made = x.new_zeros(len(x), inner.shape[-1], self.states), []
        for begin in range(0, x.shape[1], self.chunk):
            now = slice(begin, begin + self.chunk)
            kept = torch.exp(-step[:, now, :, None] * self.decay.exp())
            added = (step[:, now] * inner[:, now]).unsqueeze(-1) * enter[:, now, None]
            for time in range(kept.shape[1]):
                state = kept[:, time] * state + added[:, time]
                made.append((state @ leave[:, begin + time, :, None]).squeeze(-1))
        return self.leave((torch.stack(made, 1) + inner * self.skip) * F.silu(gate))


class Model(nn.Module):
    def __init__(self, words=3000, width=64, depth=2):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.scans = nn.ModuleList(Scan(width) for _ in range(depth))

    def forward(self, ids):
        x = self.words(ids)
        for norm, scan in zip(self.norms, self.scans, strict=True):
            x = x + scan(norm(x))
        return F.linear(x, self.words.weight)


torch.manual_seed(0)
model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=4)
for number in range(8):
    ids = torch.randint(3000, (6, 97)).to(device)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / 2
    loss.backward()
    if (number + 1) % 2 == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
